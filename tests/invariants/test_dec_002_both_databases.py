"""DEC-002: SQLite embedded, PostgreSQL for more than one host; the same code and this same suite on both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from jobs.db import is_sqlite
from jobs.engine.claim import Claim
from jobs.engine.sql import candidates, claim, finish, insert, limits, promote
from jobs.engine.sql.columns import CLAIM_COLUMNS
from jobs.models import Job
from jobs.services import jobs as job_services
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

TYPE = job_types.anything.name
STATEMENTS = (
    insert.insert_job,
    insert.insert_jobs,
    claim.claim_next,
    claim.claim_chosen,
    claim.renew_leases,
    finish.finish_jobs,
    finish.add_to_rollup,
    promote.promote,
    promote.promote_due,
    promote.read_queue_state,
    candidates.find_in_window,
    candidates.find_across_flows,
    limits.read_limits,
)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.__name__)
def test_dec_002_unit_every_statement_has_a_form_for_each_database(statement: Callable[..., Any]) -> None:
    """The callers name no database; the rest of the suite runs each statement on both."""
    assert "is_sqlite(connection)" in inspect.getsource(statement)
    assert next(iter(inspect.signature(statement).parameters)) == "connection"


def test_dec_002_unit_a_claim_is_read_in_the_order_in_which_both_answer() -> None:
    assert Claim._fields == (*CLAIM_COLUMNS, "artifacts")


@pytest.mark.django_db(transaction=True)
def test_dec_002_integration_what_was_committed_outlives_its_connection() -> None:
    assert is_sqlite(connection) == (connection.vendor == "sqlite")
    ids = job_services.enqueue_many([{"job_type": TYPE, "params": {"n": n}, "target": f"book-{n}"} for n in range(5)])
    executor.complete(executor.claim(Job.objects.get(pk=ids[0])))
    before = dump_tables()
    connection.close()
    assert dump_tables() == before
    assert list(Job.objects.queued().in_dispatch_order().values_list("pk", flat=True)) == ids[1:]


@pytest.mark.parametrize("vendor", ["mysql", "oracle"])
def test_dec_002_error_another_database_is_refused_by_name(vendor: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"PostgreSQL and SQLite, not on {vendor}"):
        is_sqlite(SimpleNamespace(vendor=vendor))
