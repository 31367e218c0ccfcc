"""Each due time becomes one job with the fields of its schedule, and a broken schedule does not stop others."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from schedules import services
from schedules.firing import fire_due
from schedules.models import Schedule, ScheduleFire
from tests.factories import JobTemplateFactory, ScheduleFactory
from tests.support import executor
from tests.support.schedules import (
    NOON,
    create_due_schedule,
    create_schedule,
    list_fire_times,
    list_jobs,
    list_minutes,
    make_due,
    require_a_job_per_fire,
)
from tests.support.snapshots import dump_tables, list_events

pytestmark = pytest.mark.django_db


def test_a_due_time_makes_one_job_however_often_it_is_checked() -> None:
    row = create_due_schedule(params={"n": 1}, priority="HIGH", target="book-1", resource="attic")
    assert [fire_due(NOON - timedelta(seconds=1)), fire_due(NOON), fire_due(NOON), fire_due(NOON)] == [0, 1, 0, 0]
    (job,) = list_jobs(row)
    assert (job.status, job.params, job.priority, job.target, job.resource) == (
        "QUEUED",
        {"n": 1},
        75,
        "book-1",
        "attic",
    )
    assert (job.fire_time, job.not_before) == (NOON, None)
    row.refresh_from_db()
    assert (row.next_fire_at, row.last_fire_at, row.last_job_id) == (NOON + timedelta(minutes=1), NOON, job.pk)
    (event,) = list_events(job)
    assert (event.kind, event.actor_kind, event.reason) == ("SUBMITTED", "scheduler", "scheduled run")
    require_a_job_per_fire()


def test_a_due_time_that_was_fired_is_not_fired_again_even_if_the_schedule_is_set_back() -> None:
    row = create_due_schedule()
    fire_due(NOON)
    make_due(row, NOON)
    assert fire_due(NOON + timedelta(minutes=1)) == 1
    assert list_fire_times(row) == list_minutes(NOON, 2)
    row.refresh_from_db()
    assert row.fire_count == 2
    require_a_job_per_fire()


def test_a_template_fires_with_its_presets_and_the_schedules_own_fields_win() -> None:
    JobTemplateFactory.create(
        name="nightly", job_type="tests.anything", params={"a": 1, "b": 2}, priority=30, resource="attic"
    )
    row = create_due_schedule(template="nightly", params={"b": 3})
    fire_due(NOON)
    (job,) = list_jobs(row)
    assert (job.params, job.priority, job.resource) == ({"a": 1, "b": 3}, 30, "attic")
    assert job.template is not None


def test_the_due_time_can_be_a_param() -> None:
    row = create_due_schedule(fire_time_param="when", job_type="tests.at")
    fire_due(NOON)
    assert list_jobs(row)[0].params == {"when": "2026-06-15T12:00:00Z"}


def test_jitter_moves_the_start_and_never_the_due_time() -> None:
    rows = [create_due_schedule(jitter_sec=30) for _ in range(20)]
    fire_due(NOON)
    starts = [list_jobs(row)[0].not_before for row in rows]
    assert all(list_fire_times(row) == [NOON] for row in rows)
    assert all(start is not None and NOON <= start < NOON + timedelta(seconds=30) for start in starts)
    assert len(set(starts)) > 15


def test_jitter_depends_on_schedule_and_due_time_alone() -> None:
    from schedules.fire_plan import compute_jitter

    row = create_schedule()
    assert (
        compute_jitter(row.pk, NOON, 60)
        == compute_jitter(row.pk, NOON, 60)
        != compute_jitter(row.pk, NOON + timedelta(minutes=1), 60)
    )


EXPECTED_FIRES: list[tuple[dict[str, Any], int]] = [
    ({"catch_up": "none"}, 0),
    ({"catch_up": "latest"}, 1),
    ({"catch_up": "all", "catch_up_max": 10}, 10),
    ({"catch_up": "all", "catch_up_max": 250}, 250),
]


@pytest.mark.parametrize(("policy", "expected"), EXPECTED_FIRES)
@pytest.mark.parametrize("rule", [{"cron": "* * * * *"}, {"cron": "7 * * * *"}, {"every_sec": 60}])
def test_after_30_days_down_catch_up_decides(policy: dict[str, Any], expected: int, rule: dict[str, Any]) -> None:
    row = make_due(create_schedule(**rule, **policy), NOON)
    later = NOON + timedelta(days=30)
    if "every_sec" in rule:
        Schedule.objects.update(anchor_at=NOON)
    while fire_due(later):  # more than a hundred fires take several rounds
        pass
    times = list_fire_times(row)
    row.refresh_from_db()
    assert len(times) == len(list_jobs(row)) == expected
    assert row.next_fire_at is not None
    assert later < row.next_fire_at <= later + timedelta(hours=1)
    if times:  # the latest ones are fired
        step = timedelta(hours=1) if rule == {"cron": "7 * * * *"} else timedelta(minutes=1)
        assert later - times[-1] < step
        assert {later_time - earlier_time for earlier_time, later_time in pairwise(times)} <= {step}
    assert row.note.startswith("missed: runs due from 2026-06-15T12:0")
    assert fire_due(later) == 0


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_a_late_fire_within_its_grace_is_fired_whatever_the_catch_up(catch_up: str) -> None:
    row = create_due_schedule(catch_up=catch_up, misfire_grace_sec=300)
    assert fire_due(NOON + timedelta(minutes=4, seconds=59)) == 5
    assert list_fire_times(row) == list_minutes(NOON, 5)
    row.refresh_from_db()
    assert row.note == ""


def test_a_few_seconds_of_delay_are_no_misfire() -> None:
    row = create_due_schedule(catch_up="none", misfire_grace_sec=0)
    assert fire_due(NOON + timedelta(seconds=4)) == 1
    assert list_fire_times(row) == [NOON]


def test_a_schedule_fires_at_most_max_fires_times() -> None:
    row = create_due_schedule(max_fires=3, misfire_grace_sec=3600)
    assert fire_due(NOON + timedelta(minutes=1)) == 2
    assert fire_due(NOON + timedelta(minutes=30)) == 1
    row.refresh_from_db()
    assert (row.fire_count, row.next_fire_at, row.enabled) == (3, None, True)
    assert fire_due(NOON + timedelta(days=1)) == 0


def test_a_single_run_fires_once() -> None:
    row = create_schedule(run_at="2099-01-01T00:00:00Z")
    assert row.next_fire_at is not None
    assert (fire_due(row.next_fire_at), fire_due(row.next_fire_at + timedelta(days=1))) == (1, 0)
    row.refresh_from_db()
    assert row.next_fire_at is None


def test_intervals_are_counted_from_their_anchor() -> None:
    row = create_schedule(every_sec=90, anchor_at="2026-06-15T11:59:00Z")
    make_due(row, NOON + timedelta(seconds=30))
    fire_due(NOON + timedelta(seconds=59))
    row.refresh_from_db()
    assert (list_fire_times(row), row.next_fire_at) == ([NOON + timedelta(seconds=30)], NOON + timedelta(seconds=120))


class TestOverlap:
    def test_a_fire_is_skipped_while_the_last_ones_job_is_live_and_says_why(self) -> None:
        row = create_due_schedule(overlap="skip")
        fire_due(NOON)
        first = executor.claim(list_jobs(row)[0])
        fire_due(NOON + timedelta(minutes=1))
        fire_due(NOON + timedelta(minutes=2))  # the previous fire was itself skipped; the job of the first still runs
        _, *skipped = list_jobs(row)
        for job in skipped:
            assert (job.status, job.status_reason) == (
                "SKIPPED",
                f"the previous run is still running: job {first.pk}",
            )
            assert [event.kind for event in list_events(job)] == ["SUBMITTED", "SKIPPED"]
        executor.complete(first)
        fire_due(NOON + timedelta(minutes=3))
        assert [job.status for job in list_jobs(row)] == ["COMPLETED", "SKIPPED", "SKIPPED", "QUEUED"]
        assert len(list_fire_times(row)) == 4
        require_a_job_per_fire()

    def test_the_whole_retry_chain_counts(self) -> None:
        row = create_due_schedule(overlap="skip")
        fire_due(NOON)
        failed = executor.fail(executor.claim(list_jobs(row)[0]), retry_in=3600)
        fire_due(NOON + timedelta(minutes=1))
        retry = failed.retried_by
        skipped = Job.objects.get(status=Status.SKIPPED)
        assert f"the previous run is still queued: job {retry.pk}" in skipped.status_reason
        job_services.cancel(retry.pk)
        fire_due(NOON + timedelta(minutes=2))
        assert Job.objects.filter(schedule=row, status=Status.QUEUED).count() == 1

    @pytest.mark.parametrize("state", ["paused", "failed for good", "cancelled"])
    def test_only_a_live_job_overlaps(self, state: str) -> None:
        row = create_due_schedule(overlap="skip")
        fire_due(NOON)
        (job,) = list_jobs(row)
        if state == "failed for good":
            executor.fail(executor.claim(job))
        else:
            {"paused": job_services.pause, "cancelled": job_services.cancel}[state](job.pk)
        fire_due(NOON + timedelta(minutes=1))
        assert list_jobs(row)[1].status == ("SKIPPED" if state == "paused" else "QUEUED")

    def test_of_many_due_at_once_the_first_runs(self) -> None:
        row = create_due_schedule(overlap="skip", misfire_grace_sec=3600)
        fire_due(NOON + timedelta(minutes=4))
        assert [job.status for job in list_jobs(row)] == ["QUEUED", *["SKIPPED"] * 4]

    def test_by_default_fires_overlap(self) -> None:
        row = create_due_schedule()
        fire_due(NOON)
        fire_due(NOON + timedelta(minutes=1))
        assert [job.status for job in list_jobs(row)] == ["QUEUED", "QUEUED"]

    def test_a_triggered_job_is_no_fire(self) -> None:
        row = create_due_schedule(overlap="skip")
        services.trigger(row.pk)
        fire_due(NOON)
        assert [job.status for job in Job.objects.filter(schedule=row)] == ["QUEUED", "QUEUED"]


BROKEN_ROWS: dict[str, dict[str, Any]] = {
    "There is no job type “no.such.type”": {"job_type": "no.such.type"},
    "cron has 4 fields": {"cron": "every day at nine"},
    "never comes due": {"cron": "0 0 31 2 *"},
    "There is no time zone “Mars/Phobos”": {"timezone": "Mars/Phobos"},
    "../../etc/passwd": {"timezone": "../../etc/passwd"},
    "missing": {"job_type": "tests.note", "params": {}},
    "params": {"params": "a text"},
    "catch": {"catch_up": "perhap", "misfire_grace_sec": 0},
    "slash": {"target": "a/b"},
}


@pytest.mark.parametrize("reason", BROKEN_ROWS)
def test_a_broken_row_is_disabled_with_its_reason_and_stops_no_other(reason: str) -> None:
    before, after = create_due_schedule(), create_due_schedule()
    row = ScheduleFactory.create(
        next_fire_at=NOON, **{"job_type": "tests.anything", "params": {}, **BROKEN_ROWS[reason]}
    )
    fire_due(NOON + timedelta(seconds=30))
    row.refresh_from_db()
    assert (row.enabled, row.next_fire_at) == (False, None)
    assert row.disabled_reason.startswith("broken: ")
    if reason not in ("params", "catch", "missing"):
        assert reason in row.disabled_reason
    assert (list_fire_times(before), list_fire_times(row), list_fire_times(after)) == ([NOON], [], [NOON])


def test_schedules_whose_jobs_cannot_be_inserted_stay_due_and_stop_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while jobs are inserted (of an outbox, say) is not the schedule's: the fire is tried again."""
    from schedules import firing

    rows = [create_due_schedule(params={"n": number}) for number in range(3)]
    insert_specs = firing.job_services.insert_specs

    def insert_or_fail(jobs: Any, **options: Any) -> Any:
        if any('"n":1' in str(job) for job in jobs):
            raise RuntimeError("the outbox is full")
        return insert_specs(jobs, **options)

    monkeypatch.setattr(firing.job_services, "insert_specs", insert_or_fail)
    assert fire_due(NOON) == 2
    assert [len(list_fire_times(row)) for row in rows] == [1, 0, 1]
    assert Schedule.objects.get(pk=rows[1].pk).enabled
    require_a_job_per_fire()
    monkeypatch.undo()
    assert fire_due(NOON) == 1
    assert [list_fire_times(row) for row in rows] == [[NOON]] * 3


def test_nothing_is_half_done_when_a_fire_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from schedules import firing

    create_due_schedule()
    before = dump_tables()
    for owner, name in ((firing.job_services, "insert_specs"), (firing, "advance_schedules")):
        monkeypatch.setattr(owner, name, None)
        assert fire_due(NOON) == 0
        assert dump_tables() == before
        monkeypatch.undo()
    assert fire_due(NOON) == 1


def test_disabled_schedules_do_not_fire() -> None:
    row = create_due_schedule()
    services.disable(row.pk)
    make_due(row, NOON)
    assert fire_due(NOON) == 0
    assert not ScheduleFire.objects.exists()


def test_250_schedules_due_at_once_are_fired_in_batches_each_once() -> None:
    template = create_schedule()
    rows = [Schedule(name=f"s{n}", job_type="tests.anything", cron="* * * * *", next_fire_at=NOON) for n in range(250)]
    Schedule.objects.bulk_create(rows)
    services.disable(template.pk)
    assert fire_due(NOON) == 250
    assert Job.objects.count() == ScheduleFire.objects.count() == 250
    assert set(Schedule.objects.filter(enabled=True).values_list("next_fire_at", flat=True)) == {
        NOON + timedelta(minutes=1)
    }
    require_a_job_per_fire()


def test_runs_skipped_in_a_row_are_counted_until_one_starts() -> None:
    row = create_due_schedule(cron="* * * * *", overlap="skip", misfire_grace_sec=3600)
    fire_due(NOON)
    for minutes in (1, 2, 3):
        fire_due(NOON + timedelta(minutes=minutes))
    row.refresh_from_db()
    assert row.skips_in_a_row == 3
    assert row.last_job_id is not None
    job_services.cancel(row.last_job_id)
    fire_due(NOON + timedelta(minutes=4))
    row.refresh_from_db()
    assert row.skips_in_a_row == 0
