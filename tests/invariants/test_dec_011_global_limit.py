"""DEC-011: by default one job runs at a time; the limit is the operator's to change."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import override_settings

from jobs.conf import LimitValues, conf
from jobs.engine.selection import limits
from jobs.models import ConcurrencyLimit, Job
from jobs.services import jobs as job_services
from tests.factories import ConcurrencyLimitFactory, JobFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

TYPE = job_types.anything.name


def test_dec_011_unit_the_default_is_one_for_all() -> None:
    assert dict(conf.LIMITS.items()) == {("global", ""): LimitValues(1)}


@pytest.mark.django_db
def test_dec_011_integration_the_next_job_starts_when_the_first_has_ended() -> None:
    limits.sync_limits()
    first, second = job_services.enqueue(TYPE), job_services.enqueue(TYPE, tenant="acme", resource="other")
    running = executor.claim(first)
    assert executor.claim_next() is None
    executor.complete(running)
    executor.claim(second)


@pytest.mark.django_db
def test_dec_011_integration_an_operator_may_raise_it() -> None:
    limits.sync_limits()
    ConcurrencyLimit.objects.update(max=2, overridden=True)
    limits.sync_limits()
    job_services.enqueue_many([{"job_type": TYPE}] * 3)
    assert [executor.claim_next() is not None for _ in range(3)] == [True, True, False]


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["running", "dispatching"])
def test_dec_011_error_a_job_beyond_the_limit_stays_where_it_is(state: str) -> None:
    """A reservation for a remote executor counts as much as a running job."""
    limits.sync_limits()
    JobFactory.create(**{state: True})
    job_services.enqueue(TYPE)
    before = dump_tables()
    assert executor.claim_next() is None
    assert dump_tables() == before
    assert Job.objects.active().count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong", [{"max": 0}, {"max": -1}, {"scope": "galaxy"}, {"scope": "global", "key": "x"}], ids=str
)
def test_dec_011_error_a_limit_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ConcurrencyLimitFactory.create(**wrong)


@pytest.mark.django_db
@override_settings(JOBSCHEDULER={"LIMITS": {"global": None}})
def test_dec_011_integration_no_limit_at_all_can_be_asked_for() -> None:
    limits.sync_limits()
    job_services.enqueue_many([{"job_type": TYPE}] * 3)
    assert all(executor.claim_next() for _ in range(3))
