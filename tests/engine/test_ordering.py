"""Reordering: before, after, top and bottom; room is made where there is none; only among equals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from jobs.actors import Actor, ActorKind
from jobs.engine import ordering
from jobs.errors import InvalidInput, NotFound, WrongState
from jobs.models import Job, JobEvent, LaneMark
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory, job_in
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables, list_events

pytestmark = pytest.mark.django_db

TYPE = job_types.anything.name
ADA = Actor(ActorKind.USER, "ada")
FARTHEST = 2**62


def _bulk(count: int, **fields: Any) -> list[Job]:
    """Jobs as one bulk call makes them: their positions leave no room between them."""
    ids = job_services.enqueue_many([{"job_type": TYPE, **fields}] * count)
    found = Job.objects.in_bulk(ids)
    return [found[job_id] for job_id in ids]


def _beside(job: Job, way: str, other: Job) -> Job:
    return job_services.move(job.pk, before=other.pk) if way == "before" else job_services.move(job.pk, after=other.pk)


def _order() -> list[Any]:
    return list(Job.objects.in_dispatch_order().values_list("pk", flat=True))


def _ids(jobs: Sequence[Job]) -> list[Any]:
    return [job.pk for job in jobs]


def test_a_job_moves_before_another() -> None:
    a, b, c = (job_services.enqueue(TYPE) for _ in range(3))
    job_services.move(c.pk, before=a.pk)
    assert _order() == _ids([c, a, b])
    job_services.move(c.pk, before=b.pk)
    assert _order() == _ids([a, c, b])


def test_a_job_moves_after_another() -> None:
    a, b, c = (job_services.enqueue(TYPE) for _ in range(3))
    job_services.move(a.pk, after=c.pk)
    assert _order() == _ids([b, c, a])
    job_services.move(a.pk, after=b.pk)
    assert _order() == _ids([b, a, c])


def test_a_job_moves_to_the_top_and_to_the_bottom() -> None:
    a, b, c = (job_services.enqueue(TYPE) for _ in range(3))
    job_services.move(c.pk, to="top")
    assert _order() == _ids([c, a, b])
    job_services.move(c.pk, to="bottom")
    assert _order() == _ids([a, b, c])


def test_a_move_is_in_the_audit_trail() -> None:
    a, b = (job_services.enqueue(TYPE) for _ in range(2))
    moved = job_services.move(b.pk, before=a.pk, reason="in a hurry", actor=ADA)
    event = list_events(b)[-1]
    assert (event.kind, event.reason, event.actor_name) == ("MOVED", "in a hurry", "ada")
    assert event.data == {"from": str(b.position), "to": str(moved.position)}
    assert (event.from_status, event.to_status) == ("QUEUED", "QUEUED")


def test_a_move_in_a_lane_has_the_lane_looked_at_again() -> None:
    a, b = (job_services.enqueue(TYPE, target="book-1") for _ in range(2))
    LaneMark.objects.all().delete()
    job_services.move(b.pk, before=a.pk)
    assert LaneMark.objects.get().lane_id == a.lane_id
    executor.claim(b)


def test_a_job_already_in_its_place_stays_in_order() -> None:
    a, b = (job_services.enqueue(TYPE) for _ in range(2))
    job_services.move(a.pk, before=b.pk)
    job_services.move(b.pk, after=a.pk)
    job_services.move(b.pk, to="bottom")
    job_services.move(a.pk, to="top")
    assert _order() == _ids([a, b])


def test_the_only_job_is_first_and_last() -> None:
    only = job_services.enqueue(TYPE)
    job_services.move(only.pk, to="top")
    job_services.move(only.pk, to="bottom")
    assert _order() == [only.pk]


@pytest.mark.parametrize("size", [3, 50, 1500])
@pytest.mark.parametrize("after", [False, True])
def test_room_is_made_in_a_dense_bulk(size: int, after: bool) -> None:
    """The crowd that is spread keeps its order, however large it is."""
    jobs = _bulk(size)
    mover = job_services.enqueue(TYPE)
    other = jobs[size // 2]
    _beside(mover, "after" if after else "before", other)
    expected = _ids(jobs)
    expected.insert(size // 2 + int(after), mover.pk)
    assert _order() == expected
    assert JobEvent.objects.filter(kind="MOVED").count() == 1


def test_room_is_made_again_and_again_in_one_place() -> None:
    jobs = _bulk(20)
    expected = _ids(jobs)
    for _ in range(30):
        mover = job_services.enqueue(TYPE)
        job_services.move(mover.pk, before=jobs[10].pk)
        expected.insert(expected.index(jobs[10].pk), mover.pk)
    assert _order() == expected


def test_a_dense_bulk_is_reversed_one_move_at_a_time() -> None:
    jobs = _bulk(40)
    for job in jobs[1:]:
        job_services.move(job.pk, before=_order()[0])
    assert _order() == _ids(jobs)[::-1]


def test_room_is_made_between_equal_positions() -> None:
    jobs = [JobFactory.create(position=7) for _ in range(5)]
    before = _order()
    mover = JobFactory.create(position=100)
    job_services.move(mover.pk, after=jobs[2].pk)
    place = before.index(jobs[2].pk) + 1
    assert _order() == [*before[:place], mover.pk, *before[place:]]


def test_room_is_made_before_a_neighbour_that_is_next_to_others() -> None:
    """Those beyond the crowd keep their place: the spread ends before them."""
    crowd = _bulk(600)
    far = job_services.enqueue(TYPE, position=crowd[-1].position + 5)
    mover = job_services.enqueue(TYPE, position=crowd[-1].position + 10_000_000)
    job_services.move(mover.pk, before=crowd[1].pk)
    assert _order() == [crowd[0].pk, mover.pk, *_ids(crowd[1:]), far.pk]


@pytest.mark.parametrize("edge", [FARTHEST, -FARTHEST])
@pytest.mark.parametrize("way", ["before", "after", "top", "bottom"])
def test_a_move_beside_the_edge_of_the_numbers_keeps_the_order(edge: int, way: str) -> None:
    far = job_services.enqueue(TYPE, position=edge)
    mover = job_services.enqueue(TYPE, position=0)
    if way in ("before", "after"):
        _beside(mover, way, far)
    else:
        job_services.move(mover.pk, to="top" if way == "top" else "bottom")
    assert _order() == (_ids([mover, far]) if way in ("before", "top") else _ids([far, mover]))


def test_a_held_job_can_be_moved_among_those_that_wait() -> None:
    a = job_services.enqueue(TYPE)
    held = job_services.enqueue(TYPE, hold=True)
    job_services.move(held.pk, before=a.pk)
    assert _order() == _ids([held, a])


@pytest.mark.parametrize("other", [{"tenant": "acme"}, {"priority": 75}])
def test_a_job_moves_only_among_those_of_its_tenant_and_priority(other: dict[str, Any]) -> None:
    job, stranger = job_services.enqueue(TYPE), job_services.enqueue(TYPE, **other)
    before = dump_tables()
    for way in ("before", "after"):
        with pytest.raises(WrongState):
            _beside(job, way, stranger)
    assert dump_tables() == before


def test_the_ends_are_those_of_the_jobs_own_tenant_and_priority() -> None:
    job_services.enqueue(TYPE, tenant="acme", position=-5)
    job_services.enqueue(TYPE, priority=100, position=-9)
    a, b = job_services.enqueue(TYPE), job_services.enqueue(TYPE)
    assert job_services.move(b.pk, to="top").position == a.position - ordering.SPACING


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.QUEUED, Status.PENDING}))
def test_a_job_that_does_not_wait_cannot_be_moved(status: Status) -> None:
    job, other = job_in(status), JobFactory.create()
    before = dump_tables()
    places: list[dict[str, Any]] = [{"to": "top"}, {"to": "bottom"}, {"before": other.pk}, {"after": other.pk}]
    for where in places:
        with pytest.raises(WrongState) as refusal:
            job_services.move(job.pk, **where)
        assert refusal.value.status == status
    assert dump_tables() == before


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.QUEUED, Status.PENDING}))
def test_nothing_moves_beside_a_job_that_does_not_wait(status: Status) -> None:
    job, other = JobFactory.create(), job_in(status)
    before = dump_tables()
    for way in ("before", "after"):
        with pytest.raises(WrongState) as refusal:
            _beside(job, way, other)
        assert refusal.value.status == status
    assert dump_tables() == before


def test_a_job_that_waits_again_after_a_dispatch_can_be_moved() -> None:
    handed_back, other = JobFactory.create(queued=True, started=True), JobFactory.create()
    job_services.move(handed_back.pk, after=other.pk)
    assert _order() == _ids([other, handed_back])


def test_a_job_cannot_be_moved_beside_itself() -> None:
    job = JobFactory.create()
    before = dump_tables()
    for way in ("before", "after"):
        with pytest.raises(InvalidInput) as refusal:
            _beside(job, way, job)
        assert refusal.value.errors[0]["loc"] == [way]
    assert dump_tables() == before


def test_a_neighbour_that_does_not_exist_is_not_found() -> None:
    job, stranger = JobFactory.create(), JobFactory.build()
    before = dump_tables()
    with pytest.raises(NotFound):
        job_services.move(job.pk, before=stranger.pk)
    with pytest.raises(NotFound):
        job_services.move(stranger.pk, before=job.pk)
    assert dump_tables() == before
