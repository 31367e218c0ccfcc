"""The statements of final jobs go straight to the rows of their group: plans beside 120,000 jobs of other groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from bench import bulk_insert
from jobs.engine.member_group import MemberGroup
from jobs.models import GroupMode, Job, JobGroup
from jobs.outcomes import Completed, Failed
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.query_plans.explain import (
    JOB_TABLE,
    execute,
    explain,
    find_full_scans,
    find_scans,
    list_indexes,
    record_statements,
    require_no_full_scan,
)
from tests.support import executor

pytestmark = pytest.mark.django_db
GROUPS, SIZE = 20_000, 6
GROUP_ID = "('00000000-0000-7000-8000-' || lpad(to_hex(n / {size}), 12, '0'))::uuid"
ENDED = {"status": "'COMPLETED'", "gate": "0", "dispatched_at": "statement_timestamp()"}
ITEM = {"job_type": "sample.noop"}


@pytest.fixture(scope="module")
def other_groups(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Groups with final jobs that have ended. SQLite plans without statistics: it needs no rows."""
    if connection.vendor != "postgresql":
        yield
        return
    with django_db_blocker.unblock():
        execute(
            f"""
            INSERT INTO jobscheduler_jobgroup
                (id, tenant, name, mode, on_failure, status, finished_at, cancel_requested, then_index, round)
            SELECT {GROUP_ID.format(size=1)}, 'default', '', 'parallel', 'stop', 'COMPLETED',
                   statement_timestamp(), false, {SIZE - 1}, 1
            FROM generate_series(0, {GROUPS}) AS n
            """
        )
        place = {"group_id": GROUP_ID.format(size=SIZE), "group_index": f"n % {SIZE}"}
        bulk_insert.insert_jobs(connection, "plans.part", GROUPS * SIZE, **place, **ENDED)
        execute(
            """
            INSERT INTO jobscheduler_jobrun
                (job_id, status, started_at, finished_at, exit_code, error, artifacts, worker)
            SELECT id, 'COMPLETED', created_at, created_at, 0, '', '{"result": 1}', 'plans' FROM jobscheduler_job
            """
        )
        execute(
            """
            INSERT INTO jobscheduler_jobevent (job_id, kind, from_status, to_status, reason, actor_kind, actor_name)
            SELECT id, 'COMPLETED', 'RUNNING', 'COMPLETED', '', 'worker', 'plans' FROM jobscheduler_job
            """
        )
        execute("ANALYZE")
        yield
        execute(f"TRUNCATE {JOB_TABLE}, jobscheduler_jobgroup CASCADE")
        execute("ANALYZE")
        connection.close()


def create(on_failure: str = "stop", **options: Any) -> JobGroup:
    return groups.create([ITEM] * 5, then=ITEM, on_failure=on_failure, **options)


def run_members(made: JobGroup) -> list[Any]:
    return [executor.claim(job) for job in Job.objects.filter(group=made, status=Status.QUEUED).order_by("group_index")]


def require_indexes(work: Callable[[], object]) -> None:
    """Assert that no statement of `work` reads the whole of a table that grows."""
    if connection.vendor == "postgresql":
        statements = record_statements(work)
        assert statements
        require_no_full_scan(statements)
    with CaptureQueriesContext(connection) as captured:
        work()
    statements_by_scans = {query["sql"]: find_full_scans(query["sql"]) for query in captured}
    assert not any(statements_by_scans.values()), statements_by_scans


def test_the_end_of_the_last_member_releases_the_final_job(other_groups: None) -> None:
    made = create()
    *others, last = run_members(made)
    for job in others:
        executor.complete(job)

    require_indexes(lambda: executor.finish(last, Completed()))

    assert Job.objects.get(group=made, group_index=5).status == Status.QUEUED


@pytest.mark.parametrize("on_failure", ["stop", "skip", "continue"])
def test_a_failed_member_ends_the_final_job_or_lets_it_run(other_groups: None, on_failure: str) -> None:
    made = create(on_failure)
    *others, last = run_members(made)
    for job in others:
        executor.complete(job)

    require_indexes(lambda: executor.finish(last, Failed("no", "no")))

    expected = {"stop": Status.CANCELLED, "skip": Status.SKIPPED, "continue": Status.QUEUED}
    assert Job.objects.get(group=made, group_index=5).status == expected[on_failure]


def test_the_retry_of_a_member_reopens_the_group_and_its_final_job(other_groups: None) -> None:
    made = create()
    *others, last = run_members(made)
    for job in others:
        executor.complete(job)
    executor.finish(last, Failed("no", "no"))

    require_indexes(lambda: job_services.retry(last.pk))

    assert Job.objects.filter(group=made, group_index=5, status=Status.PENDING).exists()


@pytest.mark.parametrize("mode", [GroupMode.PARALLEL, GroupMode.SEQUENTIAL])
def test_the_results_are_read_by_the_group_and_by_the_job(other_groups: None, mode: GroupMode) -> None:
    made = create() if mode == GroupMode.PARALLEL else groups.create([ITEM] * 6, mode=mode)
    for _place in range(5):
        for job in run_members(made):
            executor.complete(job)
    final = Job.objects.get(group=made, group_index=5)

    require_indexes(MemberGroup(made.pk, final.pk).results)

    if connection.vendor == "postgresql":
        (statement,) = (item for item in record_statements(MemberGroup(made.pk, final.pk).results) if "size" in item[0])
        plan = explain(statement)
        assert not find_scans(plan)
        assert "job_group_place" in list_indexes(plan), plan
