"""`manage.py prune` deletes whole chains and groups, and nothing that a live job, target or app still needs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, models, transaction

from jobs import clock
from jobs.engine import promoter
from jobs.engine.maintenance import retention, rollup_compaction, runner
from jobs.models import (
    Gate,
    GroupStatus,
    Job,
    JobEvent,
    JobGroup,
    JobLog,
    JobMinute,
    JobRun,
    Lease,
    Target,
    Worker,
)
from jobs.models.rollup import MAX_NAMES, OTHER_NAMES
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, Status
from jobs.stats import live_counts
from tests.factories import (
    SAMPLE_TYPE,
    JobGroupFactory,
    JobMinuteFactory,
    LeaseFactory,
    ScheduleFireFactory,
    TargetFactory,
    WorkerFactory,
)
from tests.support.commands import call, run_process
from tests.support.past_jobs import create_ended_job, create_old_job, make_id
from tests.support.pruning import delete_kept_rows
from tests.support.snapshots import dump_tables

OLD, YOUNG = timedelta(days=40), timedelta(days=20)
MONTH = "--older-than=30d"

pytestmark = pytest.mark.django_db


def prune(*arguments: str) -> dict[str, int]:
    result = call("prune", MONTH, "--json", *arguments)
    assert result.code == 0, result.err
    counts: dict[str, int] = result.json
    return counts


def count_ended_jobs() -> dict[str, int]:
    """Return the number of ended jobs of all time by status."""
    return {status: jobs for status, jobs in live_counts.count_jobs().by_status().items() if status in TERMINAL}


def list_job_ids() -> set[UUID]:
    return set(Job.objects.values_list("pk", flat=True))


def test_an_old_ended_job_is_deleted_with_its_rows_and_a_young_one_is_kept() -> None:
    create_ended_job(age=OLD)
    young = create_ended_job(age=YOUNG)

    assert prune()["jobs"] == 1

    assert list_job_ids() == {young.pk}
    assert set(JobRun.objects.values_list("job_id", flat=True)) == {young.pk}
    assert set(JobEvent.objects.values_list("job_id", flat=True)) == {young.pk}
    assert set(JobLog.objects.values_list("job_id", flat=True)) == {young.pk}


@pytest.mark.parametrize("status", ["pending", "queued", "dispatching", "running", "paused"])
def test_a_live_job_is_kept_however_old(status: str) -> None:
    job = create_old_job(age=OLD, **{status: True})

    assert prune()["jobs"] == 0
    assert list_job_ids() == {job.pk}


@pytest.mark.parametrize("status", ["completed", "failed", "skipped", "cancelled"])
def test_every_terminal_status_is_pruned(status: str) -> None:
    create_old_job(age=OLD, **{status: True})

    assert prune()["jobs"] == 1


def test_a_job_that_waited_for_months_and_ended_recently_is_kept() -> None:
    job = create_ended_job(age=OLD, ended=YOUNG)

    assert prune()["jobs"] == 0
    assert list_job_ids() == {job.pk}


def test_a_failure_that_blocks_its_target_is_kept_until_it_is_resolved() -> None:
    blocking = create_old_job(age=OLD, failed=True, target="book-1")

    assert prune()["jobs"] == 0
    job_services.resolve(blocking.pk)
    assert prune()["jobs"] == 0, "its resolution is young"

    delete_kept_rows(JobEvent.objects.filter(job_id=blocking.pk))
    assert prune()["jobs"] == 1


def test_a_chain_is_deleted_as_a_whole() -> None:
    first = create_ended_job(age=OLD, failed=True)
    second = create_ended_job(age=OLD - timedelta(days=1), failed=True, retry_of=first)
    create_ended_job(age=OLD - timedelta(days=2), retry_of=second)

    assert prune()["jobs"] == 3
    assert not list_job_ids()


@pytest.mark.parametrize("tail", ["live", "young", "blocking"])
def test_a_chain_is_kept_as_a_whole_while_its_tail_must_be(tail: str) -> None:
    first = create_ended_job(age=OLD, failed=True)
    second = create_ended_job(age=OLD, failed=True, retry_of=first)
    if tail == "live":
        third = create_old_job(age=OLD, retry_of=second)
    elif tail == "young":
        third = create_ended_job(age=YOUNG, retry_of=second)
    else:
        third = create_old_job(age=OLD, failed=True, target="book-1", retry_of=second)

    assert prune()["jobs"] == 0
    assert list_job_ids() == {first.pk, second.pk, third.pk}


# ---------------------------------------------------------------------- groups


def create_old_group(**fields: Any) -> JobGroup:
    moment = clock.now() - OLD
    ended = {"status": GroupStatus.PARTIAL, "finished_at": moment}
    return JobGroupFactory.create(**{"id": make_id(moment), "created_at": moment, **ended, **fields})


def create_member(group: JobGroup, index: int, **fields: Any) -> Job:
    return create_ended_job(**{"age": OLD, "group": group, "group_index": index, **fields})


def test_a_group_is_deleted_as_a_whole_with_its_retries() -> None:
    group = create_old_group()
    create_member(group, 0)
    failed = create_member(group, 1, failed=True)
    create_member(group, 1, retry_of=failed)

    assert (prune()["jobs"], JobGroup.objects.count(), list_job_ids()) == (3, 0, set())


@pytest.mark.parametrize("reason", ["open", "young end", "young member", "blocking member"])
def test_a_group_is_kept_as_a_whole_while_one_member_must_be(reason: str) -> None:
    open_again = {"status": GroupStatus.RUNNING, "finished_at": None} if reason == "open" else {}
    young_end = {"finished_at": clock.now() - YOUNG} if reason == "young end" else {}
    group = create_old_group(**open_again, **young_end)
    create_member(group, 0)
    if reason == "young member":
        create_member(group, 1, ended=YOUNG)
    if reason == "blocking member":
        create_member(group, 1, failed=True, target="book-1")
    before = list_job_ids()

    result = prune()

    assert (result["jobs"], result["groups"]) == (0, 0)
    assert list_job_ids() == before


# ---------------------------------------------------------------------- vetoes, foreign rows and locks


@contextmanager
def veto_removal(*ids: UUID) -> Iterator[None]:
    def veto(job_ids: Sequence[UUID]) -> Iterable[UUID]:
        return [job_id for job_id in job_ids if job_id in ids]

    retention.register_veto(veto)
    try:
        yield
    finally:
        retention.unregister_veto(veto)


def test_a_veto_keeps_the_whole_chain_and_the_whole_group() -> None:
    create_ended_job(age=OLD)
    first = create_ended_job(age=OLD, failed=True)
    second = create_ended_job(age=OLD, retry_of=first)
    group, other = create_old_group(), create_old_group()
    members = [create_member(group, 0), create_member(group, 1), create_member(other, 0)]

    with veto_removal(second.pk, members[1].pk, other.pk):
        assert prune()["jobs"] == 1
        assert list_job_ids() == {first.pk, second.pk, *(job.pk for job in members)}
    assert prune()["jobs"] == 5


def test_a_fire_is_detached_from_its_job_and_kept() -> None:
    fire = ScheduleFireFactory.create(job=create_ended_job(age=OLD))

    assert prune()["jobs"] == 1
    fire.refresh_from_db()
    assert fire.job_id is None


def test_a_job_is_kept_while_a_row_of_another_app_protects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job._meta.get_field("fires"), "on_delete", models.PROTECT)
    job = create_ended_job(age=OLD)
    fire = ScheduleFireFactory.create(job=job)

    assert prune()["jobs"] == 0
    fire.refresh_from_db()
    assert fire.job_id == job.pk


@pytest.mark.django_db(transaction=True)
def test_an_unknown_foreign_key_keeps_its_job_and_no_other() -> None:
    jobs = [create_ended_job(age=OLD) for _ in range(3)]
    kind = "uuid" if connection.vendor == "postgresql" else "char(32)"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE stranger (job_id {kind} REFERENCES jobscheduler_job (id))")
        try:
            key = jobs[1].pk if connection.vendor == "postgresql" else jobs[1].pk.hex
            cursor.execute("INSERT INTO stranger VALUES (%s)", [key])

            assert prune()["jobs"] == 2
            assert list_job_ids() == {jobs[1].pk}
            assert JobEvent.objects.filter(job=jobs[1]).count() == 2
        finally:
            cursor.execute("DROP TABLE stranger")


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
def test_a_chain_with_a_locked_job_is_left_alone() -> None:
    first = create_ended_job(age=OLD, failed=True)
    second = create_ended_job(age=OLD, retry_of=first)
    other = create_ended_job(age=OLD)
    locked, done = threading.Event(), threading.Event()

    def lock_job() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=second.pk)
            locked.set()
            assert done.wait(30)
        connection.close()

    thread = threading.Thread(target=lock_job)
    thread.start()
    try:
        assert locked.wait(30)
        assert prune()["jobs"] == 1
    finally:
        done.set()
        thread.join()
    assert list_job_ids() == {first.pk, second.pk}
    assert other.pk not in list_job_ids()


# ---------------------------------------------------------------------- dry run, batches, the other tables


def test_a_dry_run_predicts_the_real_run_and_changes_nothing() -> None:
    first = create_ended_job(age=OLD, failed=True)
    create_ended_job(age=OLD, retry_of=first)
    create_old_job(age=OLD)
    group = create_old_group()
    create_member(group, 0)
    JobMinuteFactory.create(minute=clock.now() - OLD)
    WorkerFactory.create(heartbeat_at=clock.now() - OLD)
    before = dump_tables()

    dry_run = prune("--dry-run")

    assert dump_tables() == before
    assert dry_run == {"dry_run": True, "jobs": 3, "groups": 1, "minutes": 1, "workers": 1, "leases": 0, "targets": 0}
    assert prune() == {**dry_run, "dry_run": False}


def test_many_batches_delete_all_old_jobs_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    monkeypatch.setattr(retention, "GROUP_BATCH_SIZE", 1)
    kept_ids = {create_old_job(age=OLD).pk}
    for number in range(7):
        create_ended_job(age=OLD)
        kept_ids.add(create_old_job(age=OLD, failed=True, target=f"book-{number}").pk)
    for _ in range(3):
        group = create_old_group()
        for index in range(5):
            create_member(group, index)

    assert prune()["jobs"] == 22
    assert list_job_ids() == kept_ids


def test_totals_are_kept_while_old_minutes_become_days() -> None:
    day = datetime(2020, 5, 17, tzinfo=UTC)
    for hour, jobs in ((0, 1), (9, 2), (23, 4)):
        JobMinuteFactory.create(minute=day + timedelta(hours=hour), jobs=jobs, run_sec=1.5, wait_sec=0.5)
    JobMinuteFactory.create(minute=day + timedelta(hours=9), jobs=8, outcome=Status.FAILED)
    JobMinuteFactory.create(minute=day + timedelta(days=1), jobs=16, run_bucket=3)
    young = JobMinuteFactory.create(minute=clock.now() - YOUNG, jobs=32)
    before = count_ended_jobs()

    assert prune()["minutes"] == 5

    assert count_ended_jobs() == before == {"COMPLETED": 55, "FAILED": 8, "SKIPPED": 0, "CANCELLED": 0}
    days = JobMinute.objects.filter(worker=rollup_compaction.DAY_WRITER).order_by("minute", "outcome")
    assert list(days.values_list("minute", "outcome", "run_bucket", "jobs", "run_sec", "wait_sec")) == [
        (day, "COMPLETED", 0, 7, 4.5, 1.5),
        (day, "FAILED", 0, 8, 0, 0),
        (day + timedelta(days=1), "COMPLETED", 3, 16, 0, 0),
    ]
    assert JobMinute.objects.exclude(worker=rollup_compaction.DAY_WRITER).get() == young
    assert prune()["minutes"] == 0
    JobMinuteFactory.create(minute=day + timedelta(hours=5), jobs=100)  # a late minute is added to its day
    assert prune()["minutes"] == 1
    assert count_ended_jobs()["COMPLETED"] == 155


def test_old_workers_and_leases_are_deleted_too() -> None:
    long_ago, recently = clock.now() - OLD, clock.now() - YOUNG
    WorkerFactory.create(heartbeat_at=long_ago)
    recent_worker = WorkerFactory.create(heartbeat_at=recently)
    LeaseFactory.create(id=make_id(long_ago), ended_at=long_ago)
    open_lease = LeaseFactory.create(id=make_id(long_ago))

    result = prune()

    assert (result["workers"], result["leases"]) == (1, 1)
    assert (Worker.objects.get(), Lease.objects.get()) == (recent_worker, open_lease)


def test_old_targets_without_jobs_are_deleted_unless_they_are_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    long_ago = clock.now() - OLD
    for number in range(5):
        TargetFactory.create(key=f"idle-{number}", created_at=long_ago)
    TargetFactory.create(key="paused", created_at=long_ago, paused=True)
    TargetFactory.create(key="young")
    TargetFactory.create(key="busy", created_at=long_ago)
    TargetFactory.create(key="busy", tenant="another", created_at=long_ago)
    create_ended_job(age=YOUNG, target="busy")

    assert prune("--dry-run")["targets"] == 6
    assert prune()["targets"] == 6

    assert set(Target.objects.values_list("key", "tenant")) == {
        *(("paused", "default"), ("young", "default"), ("busy", "default"))
    }


def test_a_deleted_target_is_there_again_with_its_next_job() -> None:
    TargetFactory.create(key="book", created_at=clock.now() - OLD)
    assert prune()["targets"] == 1
    job = job_services.enqueue(SAMPLE_TYPE, {"text": "x"}, target="book")
    promoter.promote()
    job.refresh_from_db()
    assert (Target.objects.get().key, job.gate) == ("book", Gate.READY)


def test_a_tenant_with_countless_names_keeps_those_with_the_most_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of its names become “other”, and no job is lost from the totals."""
    day = datetime(2020, 5, 17, tzinfo=UTC)
    names = [f"name-{number:04}" for number in range(MAX_NAMES + 20)]
    rows = [
        JobMinuteFactory.build(minute=day, jobs=2, tenant=tenant, **{column: name})
        for tenant, column in (("a", "resource"), ("b", "job_type"))
        for name in names
    ]
    JobMinute.objects.bulk_create([*rows, JobMinuteFactory.build(minute=day, jobs=9, tenant="a", resource="zz")])
    JobMinuteFactory.create(minute=day, jobs=1, tenant="c", resource="of another tenant")

    prune()

    for tenant, column, others in (("a", "resource", 21), ("b", "job_type", 20)):
        jobs = dict(JobMinute.objects.filter(tenant=tenant).values_list(column, "jobs"))
        assert (len(jobs), jobs.pop(OTHER_NAMES)) == (MAX_NAMES + 1, 2 * others)
        assert set(jobs) == {*names[: MAX_NAMES + 20 - others], *(["zz"] if tenant == "a" else [])}
    assert JobMinute.objects.get(tenant="c").resource == "of another tenant"
    assert count_ended_jobs()["COMPLETED"] == 2 * len(rows) + 9 + 1


# ---------------------------------------------------------------------- options and the maintenance task


def test_older_than_is_required_unless_the_settings_have_a_retention(settings: Any) -> None:
    create_ended_job(age=OLD)
    assert call("prune").code == 2
    assert call("prune", "--older-than=old").code == 2

    settings.JOBSCHEDULER = {"RETENTION_DAYS": 30}
    assert call("prune").out == "Deleted or compacted: 1 jobs, 0 groups, 0 minutes, 0 workers, 0 leases, 0 targets.\n"


def test_the_task_is_off_unless_the_settings_have_a_retention(settings: Any) -> None:
    create_ended_job(age=OLD)
    assert "retention: off" in call("tick").out
    assert Job.objects.count() == 1

    settings.JOBSCHEDULER = {"RETENTION_DAYS": 30}
    assert "retention: 1 jobs" in call("tick").out
    assert Job.objects.count() == 0
    assert retention.pause_sec() == retention.IDLE_SEC


def test_a_round_of_the_task_is_bounded_and_the_next_continues(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.JOBSCHEDULER = {"RETENTION_DAYS": 30}
    monkeypatch.setattr(retention, "ROUND_SEC", -1.0)
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    for _ in range(5):
        create_ended_job(age=OLD)
    counts = []
    while not counts or retention.pause_sec() == retention.BUSY_SEC:
        retention.run_round()
        counts.append(Job.objects.count())
    assert counts[:3] == [3, 1, 0]
    assert {"retention"} <= {task.name for task in runner.list_tasks()}


def test_as_a_process_it_prunes_and_prints_the_counts(process_env: dict[str, str]) -> None:
    create_ended_job(age=OLD)

    result = run_process(process_env, "prune", MONTH)

    assert (result.code, result.err) == (0, "")
    assert result.out == "Deleted or compacted: 1 jobs, 0 groups, 0 minutes, 0 workers, 0 leases, 0 targets.\n"
