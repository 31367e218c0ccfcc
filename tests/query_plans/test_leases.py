"""Live leases are found by their index among any number of ended ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.engine.slots import reservations
from jobs.models import Lease
from jobs.services import direct_calls
from tests.factories import LeaseFactory
from tests.query_plans.explain import execute, explain_text
from tests.support.admin_pages import get_list_url
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db
ENDED = 5_000
WHOLE_TABLE = re.compile(
    r"Seq Scan on jobscheduler_lease"
    r"|using jobscheduler_lease_pkey on jobscheduler_lease.*\n(?!\s+Index Cond)"
    r"|SCAN (jobscheduler_lease|U0)( USING (COVERING )?INDEX sqlite_autoindex\w+)?\n"
)


@pytest.fixture(autouse=True)
def leases() -> None:
    ended = LeaseFactory.build_batch(ENDED, kind="DIRECT", granted_at=timezone.now(), ended_at=timezone.now())
    Lease.objects.bulk_create(ended)
    LeaseFactory.create_batch(3, kind="DIRECT")
    execute("ANALYZE jobscheduler_lease")


def read_plans(work: Callable[[], object]) -> dict[str, str]:
    with CaptureQueriesContext(connection) as captured:
        work()
    statements = [query["sql"] for query in captured if 'FROM "jobscheduler_lease"' in query["sql"]]
    assert statements
    return {sql: explain_text(sql) for sql in statements if sql.startswith("SELECT")}


@pytest.mark.parametrize("tenant", [None, "default"])
def test_live_calls_are_listed_without_reading_the_ended_ones(tenant: str | None) -> None:
    api = ApiClient("read", tenant=tenant)
    for plan in read_plans(lambda: api.get("/direct")).values():
        assert not WHOLE_TABLE.search(plan), plan


def test_the_calls_of_a_token_are_counted_without_reading_the_ended_ones() -> None:
    for plan in read_plans(lambda: reservations._require_room_for_token(uuid4())).values():
        assert not WHOLE_TABLE.search(plan), plan


def test_the_console_finds_live_calls_without_reading_the_ended_ones(boss: Client) -> None:
    plans = read_plans(lambda: boss.get(f"{get_list_url(Lease)}?live=1"))
    for plan in plans.values():
        assert not WHOLE_TABLE.search(plan), plan
    assert len(direct_calls.list_live_calls()) == 3
