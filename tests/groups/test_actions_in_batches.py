"""What holds between two batches of an action on a group, and after the last one.

These tests never commit: after a call, the first batch is done and the rest waits for `run_actions`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import IntegrityError

from jobs.actors import PYTHON
from jobs.engine import finish, lifecycle
from jobs.engine import groups as engine
from jobs.engine.maintenance import group_actions
from jobs.engine.maintenance.group_actions import GroupActionCheck
from jobs.errors import WrongState
from jobs.models import GroupAction, GroupStatus, Job, JobEvent, JobGroup, JobMinute, JobRun, LaneMark
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.signals import group_finished, job_finished
from jobs.states import LIVE, Status
from tests.support import executor
from tests.support.signals import SignalRecorder, run_commit_hooks

pytestmark = pytest.mark.django_db

ITEM: dict[str, Any] = {"job_type": "sample.noop", "max_retries": 0}
BATCH = 3
MEMBERS = 8  # three batches


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine, "BATCH_SIZE", BATCH)
    yield
    engine.action_left.clear()


@pytest.fixture
def finished() -> Iterator[SignalRecorder]:
    received = SignalRecorder(group_finished)
    yield received
    received.disconnect()


def create(mode: str = "parallel", members: int = MEMBERS, **options: Any) -> JobGroup:
    return groups.create([ITEM] * members, mode=mode, **options)


def place(group: JobGroup, number: int) -> Job:
    return groups.get_latest_attempts(group.pk)[number]


def statuses(group: JobGroup) -> list[str]:
    return list(groups.get_latest_attempts(group.pk).values_list("status", flat=True))


def count(group: JobGroup, status: Status) -> int:
    return statuses(group).count(status)


def get_status(group: JobGroup) -> str:
    return JobGroup.objects.get(pk=group.pk).status


def run_one_batch(group: JobGroup) -> None:
    engine.run_actions(group.pk, batches=1)


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_a_cancel_ends_a_batch_of_members_at_a_time_and_the_group_with_the_last(
    mode: str, finished: SignalRecorder
) -> None:
    group = create(mode)
    seen = []
    groups.cancel(group.pk, reason="not needed")
    while GroupAction.objects.exists():
        seen.append((count(group, Status.CANCELLED), get_status(group)))
        run_one_batch(group)
    assert seen == [(3, GroupStatus.RUNNING), (6, GroupStatus.RUNNING)]
    assert (count(group, Status.CANCELLED), get_status(group)) == (MEMBERS, GroupStatus.CANCELLED)
    events = JobEvent.objects.filter(job__group=group, kind="CANCELLED")
    assert Counter(events.values_list("reason", "to_status")) == {("not needed", "CANCELLED"): MEMBERS}
    assert finished("group_id", "round") == [(group.pk, 1)]


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_a_retry_inserts_a_batch_of_members_at_a_time(mode: str, finished: SignalRecorder) -> None:
    group = create(mode)
    groups.cancel(group.pk)
    engine.run_actions(group.pk)
    groups.retry(group.pk, reason="again")
    inserted = [Job.objects.filter(group=group).count() - MEMBERS]
    while GroupAction.objects.exists():
        run_one_batch(group)
        inserted.append(Job.objects.filter(group=group).count() - MEMBERS)
    assert inserted == [3, 6, 8]
    waiting = Status.PENDING if mode == "sequential" else Status.QUEUED
    assert statuses(group) == [Status.QUEUED] + [waiting] * (MEMBERS - 1)
    assert JobGroup.objects.get(pk=group.pk).round == 2
    while (job := executor.claim_next()) is not None:
        executor.complete(job)
    assert get_status(group) == GroupStatus.COMPLETED
    assert finished("status", "round") == [("CANCELLED", 1), ("COMPLETED", 2)]


def test_a_member_that_starts_between_two_batches_of_a_cancel_is_requested_to_stop(finished: SignalRecorder) -> None:
    group = create()
    groups.cancel(group.pk, reason="not needed")
    running = executor.claim(place(group, BATCH))
    engine.run_actions(group.pk)
    running.refresh_from_db()
    assert (running.status, running.cancel_requested, running.status_reason) == (Status.RUNNING, True, "not needed")
    assert (count(group, Status.CANCELLED), get_status(group)) == (MEMBERS - 1, GroupStatus.RUNNING)
    assert running.lease_token is not None
    finish.stop(running.pk, running.lease_token, actor=executor.WORKER)
    assert get_status(group) == GroupStatus.CANCELLED
    assert len(finished()) == 1


def test_a_member_that_completes_between_two_batches_of_a_cancel_releases_no_other() -> None:
    group = create("sequential")
    running = executor.claim(place(group, 0))
    groups.cancel(group.pk)
    executor.complete(running)
    assert count(group, Status.QUEUED) == 0
    engine.run_actions(group.pk)
    assert statuses(group) == [Status.COMPLETED] + [Status.CANCELLED] * (MEMBERS - 1)
    assert get_status(group) == GroupStatus.CANCELLED


def test_retries_that_finish_between_two_batches_do_not_close_their_group(finished: SignalRecorder) -> None:
    group = create()
    groups.cancel(group.pk)
    engine.run_actions(group.pk)
    groups.retry(group.pk)
    for _ in range(BATCH):
        job = executor.claim_next()
        assert job is not None
        executor.complete(job)
    assert not Job.objects.filter(group=group, status__in=LIVE).exists()
    assert (get_status(group), len(finished())) == (GroupStatus.RUNNING, 1)


def test_a_member_that_fails_between_two_batches_of_a_retry_ends_the_rest_after_them() -> None:
    group = create("sequential")
    groups.cancel(group.pk)
    engine.run_actions(group.pk)
    groups.retry(group.pk)
    executor.fail(executor.claim(place(group, 0)))
    assert count(group, Status.PENDING) == BATCH - 1
    engine.run_actions(group.pk)
    assert statuses(group) == [Status.FAILED] + [Status.CANCELLED] * (MEMBERS - 1)
    assert Job.objects.filter(group=group).count() == 2 * MEMBERS
    rest = groups.get_latest_attempts(group.pk)[1:]
    assert {job.status_reason for job in rest} == {"predecessor failed"}
    assert get_status(group) == GroupStatus.PARTIAL


@pytest.mark.parametrize(("on_failure", "end"), [("stop", Status.CANCELLED), ("skip", Status.SKIPPED)])
@pytest.mark.parametrize("how", ["fail", "cancel"])
def test_a_member_that_did_not_end_well_ends_the_rest_in_batches(on_failure: str, end: Status, how: str) -> None:
    group = create("sequential", on_failure=on_failure)
    if how == "fail":
        executor.fail(executor.claim(place(group, 0)))
    else:
        job_services.cancel(place(group, 0).pk)
    assert statuses(group)[1:] == [end] * BATCH + [Status.PENDING] * (MEMBERS - 1 - BATCH)
    assert get_status(group) == GroupStatus.RUNNING
    engine.run_actions(group.pk)
    assert statuses(group)[1:] == [end] * (MEMBERS - 1)
    reason = "predecessor failed" if how == "fail" else "predecessor cancelled"
    assert {job.status_reason for job in groups.get_latest_attempts(group.pk)[1:]} == {reason}
    assert JobGroup.objects.get(pk=group.pk).is_terminal


def test_a_finish_leaves_the_rest_of_its_group_to_the_maintenance_of_its_worker() -> None:
    check = GroupActionCheck()
    assert check.run_round() == 0
    group = create("sequential")
    executor.fail(executor.claim(place(group, 0)))
    run_commit_hooks()
    assert count(group, Status.PENDING) == MEMBERS - 1 - BATCH
    assert check.run_round() == 1
    assert (count(group, Status.PENDING), get_status(group)) == (0, GroupStatus.PARTIAL)


def test_an_idle_maintenance_round_asks_the_database_nothing(django_assert_num_queries: Any) -> None:
    check = GroupActionCheck()
    check.run_round()
    with django_assert_num_queries(0):
        check.run_round()


def test_an_action_that_always_fails_is_tried_ever_less_often_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds, tries = [0.0], list[float]()
    monkeypatch.setattr(group_actions, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    broken, sound = create(), create()
    groups.cancel(broken.pk)
    groups.cancel(sound.pk)
    run_batch = engine._run_batch

    def reject(group: JobGroup, action: GroupAction) -> bool:
        if group.pk == broken.pk:
            tries.append(seconds[0])
            raise IntegrityError("a constraint of the site")
        return run_batch(group, action)

    monkeypatch.setattr(engine, "_run_batch", reject)
    check = GroupActionCheck()
    for _tick in range(1000):
        check.run_round()
        seconds[0] += 1.0
    assert tries == [0, 21, 61, 141, 301, 621]
    assert (get_status(sound), get_status(broken)) == (GroupStatus.CANCELLED, GroupStatus.RUNNING)
    monkeypatch.setattr(engine, "_run_batch", run_batch)
    seconds[0] = 2000.0
    assert check.run_round() == 1
    assert get_status(broken) == GroupStatus.CANCELLED


@pytest.mark.parametrize("verb", [job_services.retry, job_services.resume])
def test_the_retry_of_a_member_brings_back_those_behind_it_in_batches(verb: Any) -> None:
    group = create("sequential")
    failed = executor.fail(executor.claim(place(group, 0)))
    engine.run_actions(group.pk)
    retry = verb(failed.pk)
    assert count(group, Status.PENDING) == BATCH
    engine.run_actions(group.pk)
    assert statuses(group) == [Status.QUEUED] + [Status.PENDING] * (MEMBERS - 1)
    reason = f"place reopened by the retry of {failed.pk}"
    events = JobEvent.objects.filter(kind="SUBMITTED", job__group=group, job__retry_of__isnull=False)
    assert set(events.exclude(job_id=retry.pk).values_list("reason", flat=True)) == {reason}
    while (job := executor.claim_next()) is not None:
        executor.complete(job)
    assert get_status(group) == GroupStatus.COMPLETED


def test_a_retry_after_several_failures_names_the_one_behind_which_each_member_is_reopened() -> None:
    group = create("sequential", members=7)
    job_services.cancel(place(group, 4).pk)
    executor.fail(executor.claim(place(group, 0)))
    engine.run_actions(group.pk)
    first, second = place(group, 0), place(group, 4)
    groups.retry(group.pk, reason="again")
    engine.run_actions(group.pk)
    reasons = [
        JobEvent.objects.get(job_id=job.pk, kind="SUBMITTED").reason for job in groups.get_latest_attempts(group.pk)
    ]
    behind_first, behind_second = (f"place reopened by the retry of {job.pk}" for job in (first, second))
    assert reasons == ["again", *[behind_first] * 3, "again", *[behind_second] * 2]
    assert statuses(group) == [Status.QUEUED] + [Status.PENDING] * 6


def test_a_held_member_cannot_be_released_while_an_action_may_be_about_to_end_it() -> None:
    group = groups.create([ITEM, *[{**ITEM, "hold": True}] * (MEMBERS - 1)], mode="sequential")
    executor.fail(executor.claim(place(group, 0)))
    left = place(group, BATCH + 1)
    assert left.status == Status.PENDING
    with pytest.raises(WrongState, match="another member"):
        job_services.release(left.pk)


def test_a_second_cancel_finishes_the_first() -> None:
    group = create()
    groups.cancel(group.pk, reason="first")
    with pytest.raises(WrongState):
        groups.cancel(group.pk, reason="second")
    assert set(groups.get_latest_attempts(group.pk).values_list("status_reason", flat=True)) == {"first"}
    assert get_status(group) == GroupStatus.CANCELLED


def test_a_second_retry_finishes_the_first_and_is_refused() -> None:
    group = create()
    groups.cancel(group.pk)
    engine.run_actions(group.pk)
    groups.retry(group.pk)
    with pytest.raises(WrongState):
        groups.retry(group.pk)
    assert Job.objects.filter(group=group).count() == 2 * MEMBERS
    assert not GroupAction.objects.exists()


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_actions_that_meet_run_one_after_the_other(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another process began the first one at the same moment."""
    group = create(mode)
    groups.cancel(group.pk, reason="first")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_actions", lambda *_, **__: None)
        groups.retry(group.pk, reason="second")
        groups.cancel(group.pk, reason="third")
    assert list(GroupAction.objects.order_by("pk").values_list("verb", flat=True)) == ["cancel", "retry", "cancel"]
    engine.run_actions(group.pk)
    assert not GroupAction.objects.exists()
    assert Job.objects.filter(group=group, status_reason="first").count() == MEMBERS
    assert (statuses(group), get_status(group)) == ([Status.CANCELLED] * MEMBERS, GroupStatus.CANCELLED)
    latest = groups.get_latest_attempts(group.pk)
    assert {(job.attempt, job.status_reason) for job in latest} == {(2, "third")}


def test_a_retry_that_waits_for_a_cancel_reopens_the_group_that_the_cancel_closed(
    finished: SignalRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = create()
    groups.cancel(group.pk)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_actions", lambda *_, **__: None)
        groups.retry(group.pk)
    while not JobGroup.objects.get(pk=group.pk).is_terminal:
        run_one_batch(group)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_actions", lambda *_, **__: None)
        groups.retry(group.pk)
    assert list(GroupAction.objects.values_list("verb", flat=True)) == ["retry", "retry"]
    engine.run_actions(group.pk)
    assert (count(group, Status.QUEUED), get_status(group)) == (MEMBERS, GroupStatus.RUNNING)
    assert finished("status", "round") == [("CANCELLED", 1)]
    assert JobGroup.objects.get(pk=group.pk).round == 2
    assert Job.objects.filter(group=group).count() == 2 * MEMBERS


def test_a_cancel_behind_the_action_that_ends_the_group_changes_nothing(
    finished: SignalRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = create("sequential")
    executor.fail(executor.claim(place(group, 0)))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "run_actions", lambda *_, **__: None)
        groups.cancel(group.pk)
    engine.run_actions(group.pk)
    assert statuses(group) == [Status.FAILED] + [Status.CANCELLED] * (MEMBERS - 1)
    assert {job.status_reason for job in groups.get_latest_attempts(group.pk)[1:]} == {"predecessor failed"}
    assert finished("status", "round") == [("CANCELLED", 1)]


def test_a_paused_and_an_offered_member_end_with_the_group() -> None:
    group = groups.create([ITEM, {**ITEM, "target": "book-1"}, ITEM])
    resumable = executor.claim(place(group, 0))
    assert resumable.lease_token is not None
    job_services.pause(resumable.pk)
    finish.stop(resumable.pk, resumable.lease_token, actor=executor.WORKER)
    executor.offer(place(group, 2).pk)
    LaneMark.objects.all().delete()
    received = SignalRecorder(job_finished)
    groups.cancel(group.pk, reason="over")
    jobs = groups.get_latest_attempts(group.pk)
    assert Counter(received("job_id", "status", "reason")) == {(job.pk, "CANCELLED", "over"): 1 for job in jobs}
    received.disconnect()
    run = JobRun.objects.get(job_id=resumable.pk)
    assert (run.status, run.error, run.finished_at is not None) == (Status.CANCELLED, "over", True)
    assert place(group, 2).reserved_until is None
    assert list(LaneMark.objects.values_list("lane_id", flat=True)) == [place(group, 1).lane_id]


def test_a_group_is_cancelled_in_a_few_statements_and_writes_what_a_cancel_of_each_member_writes(
    django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 500)
    items = [{**ITEM, "hold": True}, {**ITEM, "target": "book-1"}, {**ITEM, "target": "book-2"}, *[ITEM] * 60]
    one_by_one, together = groups.create(items), groups.create(items)
    for group in (one_by_one, together):
        job_services.pause(place(group, 2).pk)
        executor.offer(place(group, 3).pk)
    JobGroup.objects.update(cancel_requested=True)
    for job in groups.get_latest_attempts(one_by_one.pk):
        lifecycle.cancel(job.pk, actor=PYTHON, reason="over")
    rollup = _sum_rollup()
    marked = set(LaneMark.objects.values_list("lane_id", flat=True))
    LaneMark.objects.all().delete()
    with django_assert_max_num_queries(30):
        lifecycle.cancel_group(together.pk, actor=PYTHON, reason="over")
    assert _dump_members(together) == _dump_members(one_by_one)
    assert _sum_rollup() == 2 * rollup
    assert set(LaneMark.objects.values_list("lane_id", flat=True)) == marked
    assert get_status(together) == get_status(one_by_one) == GroupStatus.CANCELLED


def test_a_group_is_retried_in_a_few_statements_and_writes_what_a_retry_of_each_member_writes(
    django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 500)
    items = [{**ITEM, "hold": True}, *({**ITEM, "target": f"book-{number}"} for number in range(60))]
    one_by_one, together = groups.create(items), groups.create(items)
    for group in (one_by_one, together):
        groups.cancel(group.pk)
    Job.objects.filter(group_index=1).update(checkpoint={"page": 7})
    LaneMark.objects.all().delete()
    for job in groups.get_latest_attempts(one_by_one.pk):
        lifecycle.retry(job.pk, actor=PYTHON, reason="again")
    marked = set(LaneMark.objects.values_list("lane_id", flat=True))
    LaneMark.objects.all().delete()
    with django_assert_max_num_queries(40):
        lifecycle.retry_group(together.pk, actor=PYTHON, reason="again")
    assert _dump_members(together) == _dump_members(one_by_one)
    assert set(LaneMark.objects.values_list("lane_id", flat=True)) == marked


OWN_COLUMNS = {"id", "group_id", "retry_of_id", "position", "created_at", "reserved_until", "dispatched_at"}


def _dump_members(group: JobGroup) -> list[Any]:
    """Return jobs, events and runs of a group, without the columns that no two jobs share."""
    rows = []
    for job in Job.objects.filter(group=group).order_by("group_index", "attempt").values():
        events = JobEvent.objects.filter(job_id=job["id"]).order_by("pk")
        facts = events.values_list("kind", "from_status", "to_status", "reason", "actor_kind", "actor_name")
        runs = JobRun.objects.filter(job_id=job["id"]).values_list("status", "error")
        columns = {name: value for name, value in job.items() if name not in OWN_COLUMNS}
        rows.append((columns, list(facts), list(runs)))
    return rows


def _sum_rollup() -> int:
    return sum(JobMinute.objects.filter(outcome="CANCELLED").values_list("jobs", flat=True))
