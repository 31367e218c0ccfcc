"""Statements that workers repeat read no whole table: plans of PostgreSQL at 200,000 ready jobs."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from bench import bulk_insert
from jobs.actors import make_worker_actor
from jobs.engine import promoter
from jobs.engine.claim import Claimer, ServedJobs, has_unserved_jobs
from jobs.engine.finish import JobResult, finish
from jobs.engine.maintenance.recovery import LeaseReaper
from jobs.engine.sql.claim import renew_leases
from jobs.models import ConcurrencyLimit
from jobs.outcomes import Completed
from tests.query_plans.explain import (
    JOB_TABLE,
    execute,
    explain,
    explain_prepared,
    find_scans,
    get_subplan,
    list_indexes,
    list_node_types,
    record_statements,
    require_no_full_scan,
)

pytestmark = [pytest.mark.pg_only, pytest.mark.django_db]

JOBS = 200_000
TYPES = ("plans.one", "plans.two", "plans.three", "plans.four")
SLOTS = range(20)


@pytest.fixture(scope="module")
def queue(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Ready jobs of four types in equal parts, some running; statistics as autovacuum would have them."""
    if connection.vendor != "postgresql":
        yield
        return
    with django_db_blocker.unblock():
        for job_type in TYPES:
            bulk_insert.insert_jobs(connection, job_type, JOBS // len(TYPES))
        bulk_insert.insert_jobs(connection, TYPES[0], 100, **bulk_insert.RUNNING)
        execute("ANALYZE")
        yield
        execute(f"TRUNCATE {JOB_TABLE} CASCADE")
        execute("ANALYZE")
        connection.close()


@pytest.mark.parametrize("prepared", [True, False])
def test_a_claim_walks_the_dispatch_order(queue: None, prepared: bool) -> None:
    claimer = Claimer("plans", ServedJobs(TYPES))
    require_no_full_scan(
        record_statements(lambda: claimer.claim(SLOTS, lease_sec=30))
    )  # by a round: limits may be in force
    assert claimer.is_plain
    (claim,) = record_statements(lambda: claimer.claim(SLOTS, lease_sec=30))
    plan = explain_prepared(claim) if prepared else explain(claim)
    assert "job_order" in list_indexes(plan), plan
    assert not find_scans(plan), plan
    assert "Sort" not in list_node_types(get_subplan(plan, "CTE picked")), plan


def test_a_claim_under_limits_reads_no_more_than_it_needs(queue: None) -> None:
    def claim() -> None:
        ConcurrencyLimit.objects.create(scope="global", max=1000)
        ConcurrencyLimit.objects.create(scope="job_type", key=TYPES[1], max=500)
        assert Claimer("plans", ServedJobs(TYPES)).claim(SLOTS, lease_sec=30)

    require_no_full_scan(record_statements(claim))


def test_a_claim_under_rates_reads_the_limits_and_what_active_jobs_took(queue: None) -> None:
    def claim() -> None:
        ConcurrencyLimit.objects.create(scope="global", rate="1000/s", burst=1000)
        ConcurrencyLimit.objects.create(scope="job_type", key=TYPES[1], token_rate="1000/s")
        claimer = Claimer("plans", ServedJobs(TYPES))
        assert claimer.claim(SLOTS, lease_sec=30)
        assert claimer.claim([slot + 1000 for slot in SLOTS], lease_sec=30)

    statements = record_statements(claim)
    assert any("jobscheduler_tokenspend" in statement[0] for statement in statements)
    require_no_full_scan(statements)


def test_a_saturated_type_is_stepped_over_by_the_heads_of_flows(queue: None) -> None:
    def claim() -> None:
        ConcurrencyLimit.objects.create(scope="job_type", key=TYPES[0], max=1)
        ahead = (
            "UPDATE jobscheduler_job SET position = -1 WHERE job_type = %s AND id IN (SELECT id FROM jobscheduler_job"
        )
        execute(f"{ahead} WHERE gate = 3 AND job_type = %s LIMIT 1500)", [TYPES[0], TYPES[0]])
        assert Claimer("plans", ServedJobs(TYPES)).claim(SLOTS, lease_sec=30)

    asked = [statement for statement in record_statements(claim) if "SET position" not in statement[0]]
    (heads,) = [statement for statement in asked if "RECURSIVE head" in statement[0]]
    require_no_full_scan(asked)
    assert list_indexes(explain_prepared(heads)) == {"job_ready"}


def test_looking_for_foreign_work_steps_from_flow_to_flow(queue: None) -> None:
    (asked,) = record_statements(lambda: has_unserved_jobs(ServedJobs(TYPES)))
    plan = explain_prepared(asked)
    assert list_indexes(plan) == {"job_ready"}
    assert not find_scans(plan)


def test_a_sweep_reads_only_what_runs(queue: None) -> None:
    asked = record_statements(LeaseReaper().run_round)
    assert asked
    require_no_full_scan(asked)


def test_ends_and_heartbeats_go_straight_to_their_rows(queue: None) -> None:
    def work() -> None:
        claims = Claimer("plans", ServedJobs(TYPES)).claim(SLOTS, lease_sec=30)
        renew_leases(connection, [(claim.id, claim.lease_token) for claim in claims], 30)
        finish(
            [JobResult(claim.id, claim.lease_token, Completed()) for claim in claims], actor=make_worker_actor("plans")
        )

    require_no_full_scan(record_statements(work))


def test_lanes_and_due_times_are_looked_up_by_index(queue: None) -> None:
    def work() -> None:
        execute("INSERT INTO jobscheduler_lanemark (lane_id) VALUES (%s)", [uuid4()])
        promoter.promote()
        promoter.promote_due()
        promoter.read_queue_state()

    require_no_full_scan(record_statements(work))
