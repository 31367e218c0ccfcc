"""Editing a job that waits; once it was dispatched, its params, type, tenant and target are frozen for good."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.actors import Actor, ActorKind
from jobs.engine import finish, lifecycle
from jobs.errors import InvalidInput, InvalidOperationError, UnknownJobType, WrongState
from jobs.ids import derive_lane_id
from jobs.models import Gate, Job, LaneMark
from jobs.redaction import MASK
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.time_text import format_time
from tests.factories import JobFactory, job_in
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

pytestmark = pytest.mark.django_db

TYPE = job_types.note.name
ADA = Actor(ActorKind.USER, "ada")
TOMORROW = timezone.now() + timedelta(days=1)
CHANGES: dict[str, Any] = {
    "params": {"text": "b", "times": 2},
    "priority": "URGENT",
    "not_before": TOMORROW,
    "deadline_at": TOMORROW,
    "time_sensitive": True,
    "expected_duration_sec": 5,
    "max_runtime_sec": 9.5,
    "target": "book-2",
    "tags": ["x"],
}


def test_these_are_all_the_fields_that_can_be_edited() -> None:
    assert set(CHANGES) == lifecycle.EDITABLE


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("status", [Status.QUEUED, Status.PENDING])
def test_a_waiting_job_can_be_edited(name: str, status: Status) -> None:
    job = job_in(status)
    if name == "time_sensitive":  # it needs a deadline
        Job.objects.filter(pk=job.pk).update(deadline_at=TOMORROW)
    edited = job_services.update(job.pk, {name: CHANGES[name]}, actor=ADA, reason="a better idea")
    expected = {"priority": 100}.get(name, CHANGES[name])
    assert getattr(edited, name) == expected
    event = list_events(job)[-1]
    assert (event.kind, event.reason, event.actor_name) == ("UPDATED", "a better idea", "ada")
    assert (event.data["fields"], event.to_status) == ([name], status)
    assert event.data["old"].keys() == event.data["new"].keys() == {name}
    assert event.data["old"] != event.data["new"]


def test_an_edit_leaves_masked_old_and_new_values_of_what_changed() -> None:
    params = {"amount": 10, "login": {"password": "hunter2"}, "city": "Rome"}
    job = job_services.enqueue("tests.anything", params)
    job_services.update(job.pk, {"params": {**params, "amount": 10_000, "login": {"password": "hunter3"}}})
    masked = {"login": {"password": MASK}}
    values = {"old": {"params": {"amount": 10, **masked}}, "new": {"params": {"amount": 10_000, **masked}}}
    assert list_events(job)[-1].data == {"fields": ["params"], **values}


def test_times_in_the_event_of_an_edit_are_written_as_the_api_writes_times() -> None:
    job = job_services.enqueue(TYPE, {"text": "a"}, not_before=TOMORROW)
    job_services.update(job.pk, {"not_before": "2030-01-31T14:00:00+02:00"})
    data = list_events(job)[-1].data
    assert (data["old"], data["new"]) == ({"not_before": format_time(TOMORROW)}, {"not_before": "2030-01-31T12:00:00Z"})


def test_old_and_new_values_of_an_edit_are_short() -> None:
    job = job_services.enqueue("tests.anything", {"text": "a" * 100_000})
    job_services.update(job.pk, {"params": {"text": "b" * 100_000, "password": "hunter2"}})
    data = json.dumps(list_events(job)[-1].data)
    assert (len(data) < 5000, "aaaa" in data, "bbbb" in data, "hunter2" in data) == (True, True, True, False)


def test_an_edit_that_changes_nothing_leaves_no_event() -> None:
    job = job_services.enqueue(TYPE, {"text": "a"}, priority=70)
    before = dump_tables()
    job_services.update(job.pk, {"priority": 70, "params": {"text": "a"}})
    assert dump_tables() == before


def test_none_clears_a_field() -> None:
    job = job_services.enqueue(TYPE, {"text": "a"}, not_before=TOMORROW, target="book-1", priority=1, tags=["t"])
    cleared = job_services.update(job.pk, dict.fromkeys(("not_before", "target", "priority", "tags")))
    assert (cleared.not_before, cleared.target, cleared.lane_id, cleared.priority) == (None, None, None, 50)
    assert (cleared.tags, cleared.gate) == ([], Gate.READY)


def test_a_new_priority_is_also_what_a_retry_starts_from() -> None:
    job = job_services.update(JobFactory.create().pk, {"priority": 90})
    assert (job.priority, job.base_priority) == (90, 90)


def test_a_job_put_off_waits_behind_its_time_and_one_brought_forward_does_not() -> None:
    job = job_services.enqueue(TYPE, {"text": "a"})
    assert job_services.update(job.pk, {"not_before": TOMORROW}).gate == Gate.TIME
    assert executor.claim_next() is None
    assert job_services.update(job.pk, {"not_before": None}).gate == Gate.READY
    executor.claim(job)


@pytest.mark.parametrize("target", ["book-2", None])
def test_a_job_that_leaves_its_lane_has_both_lanes_looked_at_again(target: str | None) -> None:
    job = job_services.enqueue(TYPE, {"text": "a"}, target="book-1")
    LaneMark.objects.all().delete()
    job_services.update(job.pk, {"target": target})
    marked = {mark.lane_id for mark in LaneMark.objects.all()}
    assert marked == {derive_lane_id("default", item) for item in ("book-1", target) if item}
    executor.claim(job)


@pytest.mark.parametrize("target", ["book-2", None])
def test_a_paused_job_that_leaves_its_lane_lets_it_go(target: str | None) -> None:
    paused = job_services.pause(job_services.enqueue(TYPE, {"text": "a"}, target="book-1").pk)
    other = job_services.enqueue(TYPE, {"text": "b"}, target="book-1")
    assert executor.claim_next() is None
    moved = job_services.update(paused.pk, {"target": target})
    assert (moved.target, moved.holds_lane) == (target, target is not None)
    executor.claim(other)


@pytest.mark.parametrize("target", ["book-2", None])
def test_a_retry_that_leaves_its_lane_lets_it_go(target: str | None) -> None:
    failed = executor.fail(executor.claim(job_services.enqueue(TYPE, {"text": "a"}, target="book-1")), retry_in=3600)
    other = job_services.enqueue(TYPE, {"text": "b"}, target="book-1")
    assert executor.claim_next() is None
    moved = job_services.update(failed.retried_by.pk, {"target": target})
    assert (moved.target, moved.holds_lane) == (target, False)
    executor.claim(other)


DISPATCHED: dict[str, dict[str, Any]] = {
    "dispatching": {"dispatching": True},
    "running": {"running": True},
    "paused": {"paused": True},
    "handed back": {"queued": True, "started": True},
    "completed": {"completed": True},
    "failed": {"failed": True},
}


WAITS = ("paused", "handed back")
MAY_CHANGE = sorted(set(CHANGES) - {"params", "target", "tags"})


@pytest.mark.parametrize("state", DISPATCHED)
@pytest.mark.parametrize("name", ["params", "target"])
def test_what_was_dispatched_once_is_frozen(state: str, name: str) -> None:
    job = JobFactory.create(**DISPATCHED[state])
    before = dump_tables()
    with pytest.raises(InvalidOperationError, match=f"^Cannot modify {name} after dispatch$") as refusal:
        job_services.update(job.pk, {"priority": 1, name: CHANGES[name]} if state in WAITS else {name: CHANGES[name]})
    assert (refusal.value.field, refusal.value.status) == (name, job.status)
    assert dump_tables() == before


@pytest.mark.parametrize("state", WAITS)
@pytest.mark.parametrize("name", MAY_CHANGE)
def test_the_rest_changes_while_the_job_waits_also_after_its_dispatch(state: str, name: str) -> None:
    deadline = {"deadline_at": TOMORROW} if name == "time_sensitive" else {}
    job = JobFactory.create(**DISPATCHED[state], **deadline)
    edited = job_services.update(job.pk, {name: CHANGES[name]})
    assert getattr(edited, name) == {"priority": 100}.get(name, CHANGES[name])
    assert list_events(job)[-1].data["fields"] == [name]


@pytest.mark.parametrize("state", sorted(set(DISPATCHED) - set(WAITS)))
@pytest.mark.parametrize("name", MAY_CHANGE)
def test_a_job_that_does_not_wait_keeps_the_rest_and_the_refusal_names_the_field(state: str, name: str) -> None:
    job = JobFactory.create(**DISPATCHED[state], deadline_at=TOMORROW + timedelta(hours=1))
    before = dump_tables()
    with pytest.raises(WrongState, match=f"is {job.status} and its {name} cannot be changed") as refusal:
        job_services.update(job.pk, {"tags": ["x"], name: CHANGES[name]})
    assert (refusal.value.field, refusal.value.status) == (name, job.status)
    assert dump_tables() == before


@pytest.mark.parametrize("changes", [{"priority": 1}, {"not_before": TOMORROW}, {"max_runtime_sec": 5}])
def test_a_holder_of_its_lane_that_is_edited_while_it_waits_keeps_the_lane(changes: dict[str, Any]) -> None:
    job = executor.claim(job_services.enqueue(TYPE, {"text": "a"}, target="book-1"))
    job_services.enqueue(TYPE, {"text": "b"}, target="book-1", priority="URGENT")
    assert job.lease_token is not None
    finish.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="worker shut down")
    edited = job_services.update(job.pk, changes)
    assert edited.holds_lane
    assert edited.gate == (Gate.TIME if "not_before" in changes else Gate.LANE)
    job_services.update(job.pk, {"not_before": None})
    executor.claim(job)


def test_a_priority_that_was_reached_by_waiting_can_be_made_the_base() -> None:
    job = JobFactory.create(priority=70, base_priority=50)
    assert job_services.update(job.pk, {"priority": 70}).base_priority == 70
    values = {"old": {"priority": 50}, "new": {"priority": 70}}
    assert list_events(job)[-1].data == {"fields": ["priority"], **values}


def test_a_job_that_ended_before_it_was_dispatched_cannot_be_edited_either() -> None:
    job = JobFactory.create(cancelled=True)
    before = dump_tables()
    with pytest.raises(WrongState) as refusal:
        job_services.update(job.pk, {"priority": 1})
    assert (refusal.value.status, refusal.value.allowed) == ("CANCELLED", ["retry"])
    assert dump_tables() == before


@pytest.mark.parametrize("status", Status)
def test_tags_can_be_changed_at_any_time(status: Status) -> None:
    job = job_in(status)
    assert job_services.update(job.pk, {"tags": ["late"]}).tags == ["late"]
    assert list_event_kinds(job) == ["UPDATED"]


@pytest.mark.parametrize(
    ("changes", "loc"),
    [
        ({"params": {"words": 1}}, ["params", "text"]),
        ({"params": {"text": 1}}, ["params", "text"]),
        ({"params": None}, ["params"]),
        ({"priority": 101}, ["priority"]),
        ({"priority": "SOON"}, ["priority"]),
        ({"target": "a/b"}, ["target"]),
        ({"target": ""}, ["target"]),
        ({"not_before": "tomorrow"}, ["not_before"]),
        ({"deadline_at": "2031-01-01T00:00:00"}, ["deadline_at"]),
        ({"not_before": TOMORROW, "deadline_at": TOMORROW}, ["deadline_at"]),
        ({"max_runtime_sec": 0}, ["max_runtime_sec"]),
        ({"max_runtime_sec": float("nan")}, ["max_runtime_sec"]),
        ({"tags": "x"}, ["tags"]),
        ({"time_sensitive": 1}, ["time_sensitive"]),
        ({"time_sensitive": True}, ["time_sensitive"]),
        *(
            ({name: "x"}, [name])
            for name in ("status", "lease_token", "retry_of", "job_type", "tenant", "attempt", "position", "id", "gate")
        ),
        ({"tags": ["x"], "status": "COMPLETED"}, ["status"]),
    ],
)
def test_a_bad_edit_is_refused_by_field_and_changes_nothing(changes: dict[str, Any], loc: list[str]) -> None:
    job = job_services.enqueue(TYPE, {"text": "a"})
    before = dump_tables()
    with pytest.raises(InvalidInput) as refusal:
        job_services.update(job.pk, changes)
    assert loc in [error["loc"] for error in refusal.value.errors]
    assert dump_tables() == before


def test_a_deadline_must_be_after_the_start_that_the_job_has() -> None:
    job = job_services.enqueue(TYPE, {"text": "a"}, not_before=TOMORROW)
    with pytest.raises(InvalidInput) as refusal:
        job_services.update(job.pk, {"deadline_at": TOMORROW - timedelta(hours=1)})
    assert refusal.value.errors[0]["loc"] == ["deadline_at"]


def test_a_time_sensitive_job_keeps_a_deadline() -> None:
    job = job_services.enqueue(TYPE, {"text": "a"}, deadline_at=TOMORROW, time_sensitive=True)
    with pytest.raises(InvalidInput) as refusal:
        job_services.update(job.pk, {"deadline_at": None})
    assert refusal.value.errors[0]["loc"] == ["time_sensitive"]
    cleared = job_services.update(job.pk, {"deadline_at": None, "time_sensitive": None})
    assert (cleared.deadline_at, cleared.time_sensitive) == (None, False)


def test_params_of_a_type_that_is_gone_cannot_be_checked_and_stay() -> None:
    job = JobFactory.create(job_type="tests.gone")
    with pytest.raises(UnknownJobType):
        job_services.update(job.pk, {"params": {}})
    assert Job.objects.get(pk=job.pk).params == {"text": "hello"}
