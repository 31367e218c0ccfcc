"""DEC-002: SQLite embedded, PostgreSQL for more than one host; the same code and this same suite on both."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from jobs import services
from jobs.engine.claim import Claim
from jobs.engine.sql import dialect, postgres, sqlite
from jobs.engine.sql.columns import CLAIMED
from jobs.models import Job
from tests import executor, sample_jobs
from tests.snapshots import everything

TYPE = sample_jobs.anything.name
STATEMENTS = (
    "claim_jobs",
    "pick_heads",
    "promote",
    "wake_due",
    "look_ahead",
    "beat",
    "finish_jobs",
    "count_ends",
)


@pytest.mark.parametrize("name", STATEMENTS)
def test_dec_002_unit_both_dialects_say_the_same_things(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)) for module in (postgres, sqlite))
    shared = list(theirs.parameters)
    assert list(ours.parameters)[: len(shared)] == shared
    more = list(ours.parameters.values())[len(shared) :]  # what only one server can be told
    assert all(each.default is not each.empty for each in more)
    assert ours.return_annotation == theirs.return_annotation


def test_dec_002_unit_a_claim_is_read_in_the_order_in_which_both_answer() -> None:
    assert Claim._fields == (*CLAIMED, "artifacts")


@pytest.mark.django_db(transaction=True)
def test_dec_002_integration_what_was_committed_outlives_its_connection() -> None:
    assert dialect(connection) is {"postgresql": postgres, "sqlite": sqlite}[connection.vendor]
    ids = services.enqueue_many([{"job_type": TYPE, "params": {"n": n}, "target": f"book-{n}"} for n in range(5)])
    executor.complete(executor.take(Job.objects.get(pk=ids[0])))
    before = everything()
    connection.close()
    assert everything() == before
    assert list(Job.objects.queued().in_dispatch_order().values_list("pk", flat=True)) == ids[1:]


@pytest.mark.parametrize("vendor", ["mysql", "oracle"])
def test_dec_002_error_another_database_is_refused_by_name(vendor: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"PostgreSQL and SQLite, not on {vendor}"):
        dialect(SimpleNamespace(vendor=vendor))
