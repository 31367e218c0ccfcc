"""Stats are read from partial indexes on both databases, never by a full scan of the history."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from jobs.services import limits, targets
from jobs.stats import live_counts, queries
from schedules import metrics as schedule_metrics
from tests.factories import TargetFactory
from tests.query_plans.explain import Statement, execute, explain_text
from tests.query_plans.large_tables import LargeTables
from webhooks import metrics as webhook_metrics

pytestmark = pytest.mark.django_db

FULL_SCANS = (
    "Seq Scan on jobscheduler_job ",
    "jobscheduler_job_pkey",
    "SCAN jobscheduler_job\n",
    "autoindex_jobscheduler_job_",
)
# Endpoints are few: a tenant has 200 at most.
FULL_SCAN_OF_OTHERS = re.compile(
    r"Seq Scan on jobscheduler_(?:schedule|webhookdelivery|webhookmessage)"
    r"|SCAN jobscheduler_(?:schedule|webhookdelivery|webhookmessage)(?! USING (?:COVERING )?INDEX (?!sqlite_autoindex))"
    r"|_pkey on jobscheduler_(?:schedule|webhookdelivery|webhookmessage)"
)
# One job, by its key.
LOOK_UP = re.compile(
    r"SEARCH jobscheduler_job USING INDEX sqlite_autoindex_\w+ \(id=\?\)"
    r"|Index Scan using jobscheduler_job_pkey .*\n\s+Index Cond: \(id = "
)


@pytest.fixture(autouse=True)
def a_few_jobs(db: None) -> None:
    """Insert a few jobs: in an empty table all indexes have the same cost."""
    LargeTables(connection, 2000).fill_jobs()


def explain_reads(read: Callable[[], object]) -> list[str]:
    """Return the plan of each query of `read` about jobs, with its values as parameters."""
    queries: list[Statement] = []

    def record(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        queries.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(record):
        read()
    if connection.vendor == "postgresql":
        execute("SET LOCAL enable_seqscan = off")  # a small table is read whole, whatever indexes there are
    return [explain_text(sql, params) for sql, params in queries if 'FROM "jobscheduler_job"' in sql]


@pytest.mark.parametrize(
    "read",
    [
        queries.count_in_use,
        queries.get_oldest_waiting_job,
        limits.list_limits,
        lambda: list(queries.running_jobs()[:10]),
        lambda: list(queries.blocking_jobs()[:10]),
        lambda: targets.get_states([TargetFactory.create()]),
        live_counts.count_jobs,
    ],
    ids=["in use", "oldest waiting", "limits", "running", "blocking", "targets", "live counts"],
)
def test_a_figure_is_read_along_an_index(read: Callable[[], object]) -> None:
    found = explain_reads(read)

    assert found
    for plan in found:
        assert not any(walk in LOOK_UP.sub("", plan) for walk in FULL_SCANS), plan


@pytest.mark.parametrize("tenant", [None, "default"], ids=["all tenants", "one tenant"])
def test_the_metrics_of_schedules_and_webhooks_are_read_along_an_index(tenant: str | None) -> None:
    with CaptureQueriesContext(connection) as captured:
        for collect in (schedule_metrics.collect, webhook_metrics.collect):
            assert list(collect(tenant))
    if connection.vendor == "postgresql":
        execute("SET LOCAL enable_seqscan = off")
    plans = [explain_text(statement["sql"]) for statement in captured]
    assert len(plans) == 6
    for plan in plans:
        assert not FULL_SCAN_OF_OTHERS.search(plan), plan


def test_the_guard_sees_a_walk() -> None:
    (walk,) = explain_reads(lambda: Job.objects.order_by("-pk").filter(status_reason="none like it").first())
    assert any(pattern in LOOK_UP.sub("", walk) for pattern in FULL_SCANS), walk
