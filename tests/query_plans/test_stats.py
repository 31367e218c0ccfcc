"""The figures are read along the partial indexes on both databases, never by a walk over history."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from jobs.models import Job
from jobs.services import limits, targets
from jobs.stats import live_counts, queries
from tests.factories import TargetFactory
from tests.query_plans.large_tables import LargeTables

pytestmark = pytest.mark.django_db

WALKS = (
    "Seq Scan on jobscheduler_job ",
    "jobscheduler_job_pkey",
    "SCAN jobscheduler_job\n",
    "autoindex_jobscheduler_job_",
)
# One job, by its key.
LOOK_UP = re.compile(
    r"SEARCH jobscheduler_job USING INDEX sqlite_autoindex_\w+ \(id=\?\)"
    r"|Index Scan using jobscheduler_job_pkey .*\n\s+Index Cond: \(id = "
)


@pytest.fixture(autouse=True)
def a_few_jobs(db: None) -> None:
    """In a table that is known to be empty, all indexes are alike to the planner."""
    LargeTables(connection, 2000).fill_jobs()


def plans(read: Callable[[], object]) -> list[str]:
    """How the database would answer each query about jobs, with the values passed as they were."""
    asked: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        read()
    return [_plan(sql, params) for sql, params in asked if 'FROM "jobscheduler_job"' in sql]


def _plan(sql: str, params: Any) -> str:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # a small table is read whole, whatever there is
            cursor.execute(f"EXPLAIN {sql}", params)
        else:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
        return "".join(f"{row[-1]}\n" for row in cursor.fetchall())


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
    ids=["in use", "oldest waiting", "limits", "running", "blocking", "targets", "census"],
)
def test_a_figure_is_read_along_an_index(read: Callable[[], object]) -> None:
    found = plans(read)

    assert found
    for plan in found:
        assert not any(walk in LOOK_UP.sub("", plan) for walk in WALKS), plan


def test_the_guard_sees_a_walk() -> None:
    (walk,) = plans(lambda: Job.objects.order_by("-pk").filter(status_reason="none like it").first())
    assert any(pattern in LOOK_UP.sub("", walk) for pattern in WALKS), walk
