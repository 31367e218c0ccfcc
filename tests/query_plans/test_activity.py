"""With many activities and events, each list of activities reads a bounded part of an index."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from jobs.ids import uuid7s
from jobs.models import Activity, JobEvent
from jobs.services.activity_list import ActivityFilters, Position, read_page
from tests.query_plans.explain import execute, explain_text
from tests.query_plans.large_tables import LargeTables, delete_all_rows

pytestmark = pytest.mark.django_db

JOBS, ACTIVITIES = 20_000, 30_000
SORTED_ROWS = 1000  # PostgreSQL may prefer to sort the few rows of one actor or tenant
NOW = timezone.now()
ALL_FILTERS = {
    "all": ActivityFilters(),
    "tenant": ActivityFilters(tenant="other"),
    "actor": ActivityFilters(actor="actor 7"),
    "actor of a tenant": ActivityFilters(tenant="other", actor="actor 7", actor_kind="user"),
    "action": ActivityFilters(action="limit.set"),
    "action on jobs": ActivityFilters(action="job.cancel"),
    "object": ActivityFilters(object_kind="target", object_id="book-7"),
    "job": ActivityFilters(object_kind="job", object_id="01900000-0000-7000-8000-000000000000"),
    "kind of object": ActivityFilters(object_kind="target", tenant="other"),
    "time": ActivityFilters(since=NOW, until=NOW),
}
INDEXES = {
    "tenant": "activity_of_tenant",
    "actor": "activity_of_actor",
    "actor of a tenant": "activity_of_actor",
    "object": "activity_of_object",
    "kind of object": "activity_of_tenant",
}


@pytest.fixture(scope="module")
def crowd(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        LargeTables(connection, JOBS).fill()
        Activity.objects.bulk_create(
            Activity(
                id=key,
                tenant="other" if number % 50 == 0 else "default",
                actor_kind="user",
                actor_name=f"actor {number % 500}",
                action="target.pause",
                object_kind="target",
                object_id=f"book-{number % 1000}",
            )
            for number, key in enumerate(uuid7s(ACTIVITIES))
        )
        if connection.vendor == "postgresql":
            execute("VACUUM ANALYZE")
        yield
        delete_all_rows()


@pytest.mark.parametrize("name", ALL_FILTERS)
@pytest.mark.parametrize("is_first", [True, False], ids=["first page", "later page"])
def test_a_page_reads_a_part_of_an_index(name: str, is_first: bool, crowd: None) -> None:
    middle = Activity.objects.order_by("pk")[ACTIVITIES // 2].pk, JobEvent.objects.order_by("-pk")[100].pk
    with CaptureQueriesContext(connection) as captured:
        read_page(ALL_FILTERS[name], None if is_first else Position(*middle), 50)
    statements = [query["sql"] for query in captured]
    assert 1 <= len(statements) <= 10, statements
    for sql in statements:
        plan = explain_text(sql)
        assert not re.search(r"Seq Scan|USE TEMP B-TREE|SCAN jobscheduler_\w+$", plan, re.MULTILINE), (sql, plan)
        sorted_rows = [int(rows) for rows in re.findall(r"Sort  \(.* rows=(\d+)", plan)]
        assert max(sorted_rows, default=0) <= SORTED_ROWS, (sql, plan)
    plans = "\n".join(explain_text(sql) for sql in statements)
    assert INDEXES.get(name, "") in plans
    if name in ("all", "tenant", "actor", "action on jobs"):
        assert "jobevent_of_operator" in plans
