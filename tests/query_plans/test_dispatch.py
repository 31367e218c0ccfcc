"""What is asked again and again where admission, fairness or deadlines are used must not walk the queue either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.maintenance.aging import PriorityAging
from jobs.engine.maintenance.deadlines import skip_late_jobs
from jobs.explain import explain as explain_job
from jobs.ids import derive_lane_id
from jobs.models import ConcurrencyLimit, Gate, Job
from tests.factories import LeaseFactory
from tests.query_plans.explain import (
    execute,
    explain,
    find_scans,
    list_indexes,
    record_statements,
    require_no_full_scan,
)
from tests.query_plans.test_claim import SLOTS, TYPES, queue

pytestmark = [pytest.mark.pg_only, pytest.mark.django_db, pytest.mark.usefixtures("queue")]
assert queue
OPEN = {"LIMITS": {"global": None}}
CAPACITY = {
    **OPEN,
    "ADMISSION_POLICY": "jobs.policies.admission.Capacity",
    "ADMISSION": {"quiet_load": 900, "busy_load": 1000, "capacity_max": 5},
}
SHARES = {**OPEN, "FAIRNESS_POLICY": "jobs.policies.fairness.FairShare"}
AGING = {**OPEN, "FAIRNESS_POLICY": "jobs.policies.fairness.Aging"}


def claim() -> None:
    Claimer("plans", ServedJobs(TYPES)).claim(SLOTS, lease_sec=30)


def late() -> None:
    ahead = "SELECT id FROM jobscheduler_job WHERE gate = 3 LIMIT 20"
    sql = f"UPDATE jobscheduler_job SET deadline_at = now() WHERE id IN ({ahead})"
    execute(sql)
    skip_late_jobs()


@pytest.mark.parametrize(
    ("settings", "work"),
    [(CAPACITY, claim), (SHARES, claim), (AGING, lambda: PriorityAging().run_round()), (OPEN, late)],
    ids=["admission", "fair shares", "aging", "deadlines"],
)
def test_nothing_is_read_but_what_is_needed(settings: dict[str, Any], work: Callable[[], object]) -> None:
    with override_settings(JOBSCHEDULER=settings):
        asked = [statement for statement in record_statements(work) if "SET deadline_at" not in statement[0]]
    assert asked
    require_no_full_scan(asked)


@pytest.mark.parametrize("kind", ["ready", "in a target", "scheduled"])
def test_a_forecast_reads_the_queue_along_its_indexes(kind: str) -> None:
    last = Job.objects.ready().in_dispatch_order().reverse()[0]
    changes: dict[str, Any] = {"ready": {}, "scheduled": {"gate": Gate.TIME, "not_before": timezone.now()}}.get(
        kind, {}
    )
    if kind == "in a target":
        changes = {"target": "book", "lane_id": derive_lane_id("default", "book"), "gate": Gate.LANE}
    Job.objects.filter(pk=last.pk).update(**changes)
    asked = [statement for statement in record_statements(lambda: explain_job(last.pk)) if "ahead" in statement[0]]
    (statement,) = asked
    plan = explain(statement)
    assert not find_scans(plan), plan
    assert "job_order" in list_indexes(plan)


def test_what_is_late_is_found_by_its_own_index() -> None:
    asked = [
        statement
        for statement in record_statements(late)
        if "deadline_at" in statement[0] and statement[0].startswith("SELECT")
    ]
    assert any("job_deadline" in list_indexes(explain(statement)) for statement in asked), asked


def test_a_direct_call_that_waits_costs_a_claim_no_statement_more() -> None:
    ConcurrencyLimit.objects.create(scope="global", max=1000)
    ConcurrencyLimit.objects.create(scope="job_type", key="other", max=1)
    before = len(record_statements(claim))
    LeaseFactory.create(kind="DIRECT", job_type="other", granted_at=None)
    ConcurrencyLimit.objects.filter(scope="global").delete()
    ConcurrencyLimit.objects.create(scope="job_type", key=TYPES[0], max=1000)
    assert len(record_statements(claim)) <= before + 1, "a window instead of the plain walk"
