"""INV-003: an executor's slot runs one job at a time."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, models, transaction
from django.db.models import Q

from jobs.engine.claim import Claimer, ServedJobs
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support.snapshots import dump_tables

TYPE = job_types.anything.name


def _claimer() -> Claimer:
    return Claimer("worker-1", ServedJobs(types=(TYPE,)))


def test_inv_003_unit_a_slot_is_unique_among_running_jobs() -> None:
    rule = next(constraint for constraint in Job._meta.constraints if constraint.name == "job_one_per_slot")
    assert isinstance(rule, models.UniqueConstraint)
    assert (rule.fields, rule.condition) == (("lease_owner",), Q(status=Status.RUNNING))


@pytest.mark.django_db
def test_inv_003_integration_a_worker_takes_as_many_jobs_as_it_has_free_slots() -> None:
    job_services.enqueue_many([{"job_type": TYPE}] * 5)
    claimer = _claimer()
    taken = claimer.claim([0, 1], lease_sec=30)
    assert sorted(claim.lease_owner for claim in taken) == ["worker-1#0", "worker-1#1"]
    assert Job.objects.running().count() == 2


@pytest.mark.django_db
def test_inv_003_error_a_busy_slot_cannot_take_a_second_job() -> None:
    job_services.enqueue_many([{"job_type": TYPE}] * 2)
    claimer = _claimer()
    assert len(claimer.claim([0], lease_sec=30)) == 1
    before = dump_tables()
    with pytest.raises(IntegrityError), transaction.atomic():
        claimer.claim([0], lease_sec=30)
    assert dump_tables() == before


@pytest.mark.django_db
def test_inv_003_error_the_orm_cannot_put_two_jobs_into_one_slot() -> None:
    JobFactory.create(running=True, lease_owner="worker-1#0")
    with pytest.raises(IntegrityError), transaction.atomic():
        JobFactory.create(running=True, lease_owner="worker-1#0")
