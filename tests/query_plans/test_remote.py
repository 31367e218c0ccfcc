"""What remote workers ask again and again must not walk the queue: PostgreSQL's plans at 100,000 remote jobs."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.db import connection
from pytest_django import DjangoDbBlocker

from bench import bulk_insert
from jobs import ids
from jobs.engine.remote import offers, starts
from jobs.models import ConcurrencyLimit, JobEvent
from jobs.services import remote
from tests.query_plans.explain import (
    JOB_TABLE,
    execute,
    explain,
    explain_prepared,
    list_indexes,
    record_statements,
    require_no_full_scan,
)
from tests.remote.conftest import first_request as first_request
from tests.remote.conftest import unlimited as unlimited

pytestmark = [pytest.mark.pg_only, pytest.mark.django_db]

JOBS = 100_000
TYPES = ("plans.index", "plans.render")
ADDON = "visuals"


@pytest.fixture(scope="module")
def queue(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Ready remote jobs of two types, and as many of another addon."""
    if connection.vendor != "postgresql":
        yield
        return
    with django_db_blocker.unblock():
        for addon in (ADDON, "sounds"):
            for job_type in TYPES:
                flow = str(ids.derive_flow_id("default", job_type, "default", addon))
                there = {"addon_id": f"'{addon}'", "remote": "true", "flow_id": flow}
                bulk_insert.insert_jobs(connection, job_type, JOBS // 4, **there)
        execute("ANALYZE")
        yield
        execute(f"TRUNCATE {JOB_TABLE} CASCADE")
        execute("ANALYZE")
        connection.close()


def test_an_offer_walks_the_dispatch_order_of_its_addon(queue: None) -> None:
    asked = record_statements(lambda: offers.offer_jobs([ADDON], "default", 5))
    require_no_full_scan(asked)
    (window,) = [statement for statement in asked if ") first WHERE" in statement[0]]
    assert list_indexes(explain(window)) == {"job_offerable"}


@pytest.mark.parametrize("addons", [None, [ADDON, "sounds"]])
def test_an_offer_of_several_addons_walks_the_heads_of_flows(queue: None, addons: list[str] | None) -> None:
    asked = record_statements(lambda: offers.offer_jobs(addons, "default", 5))
    require_no_full_scan(asked)
    heads = [statement for statement in asked if "RECURSIVE head" in statement[0]]
    assert len(heads) == 2, "one to see whether there is any, one to choose"
    assert {index for statement in heads for index in list_indexes(explain(statement))} == {"job_offerable_flow"}


def test_a_poll_of_another_tenant_walks_none_of_these_jobs(queue: None) -> None:
    require_no_full_scan(record_statements(lambda: offers.offer_jobs(None, "acme", 5)))


def test_a_full_type_is_stepped_over_by_the_heads_of_flows(queue: None) -> None:
    def offer() -> None:
        ConcurrencyLimit.objects.create(scope="job_type", key=TYPES[0], max=1)
        execute(f"UPDATE {JOB_TABLE} SET position = -1 WHERE job_type = %s AND addon_id = %s", [TYPES[0], ADDON])
        assert len(offers.offer_jobs([ADDON], "default", 5)) == 5

    asked = [statement for statement in record_statements(offer) if "SET position" not in statement[0]]
    (heads,) = [statement for statement in asked if "RECURSIVE head" in statement[0]]
    assert list_indexes(explain_prepared(heads)) == {"job_offerable_flow"}
    require_no_full_scan(asked)


def test_a_poll_with_all_its_housekeeping_walks_nothing(queue: None) -> None:
    require_no_full_scan(record_statements(lambda: remote.list_dispatchable([ADDON], tenant="default", limit=5)))


def test_a_lease_is_found_by_its_id(queue: None) -> None:
    JobEvent.objects.bulk_create(
        [JobEvent(job_id=uuid4(), kind="RUNNING", actor_kind="worker") for _ in range(5000)]
        + [JobEvent(job_id=uuid4(), kind="COMPLETED", actor_kind="worker", token=uuid4()) for _ in range(5000)]
    )
    execute("ANALYZE jobscheduler_jobevent")
    sql, params = starts._start_events().filter(token=uuid4()).query.sql_with_params()
    assert list_indexes(explain((sql, params))) == {"jobevent_of_lease"}
