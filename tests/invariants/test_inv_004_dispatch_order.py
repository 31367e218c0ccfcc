"""INV-004: jobs are dispatched by priority, then position, then time of birth."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import product

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from jobs.errors import InvalidInput
from jobs.models import DISPATCH_ORDER, Job
from jobs.services import jobs as job_services
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support import executor

pytestmark = pytest.mark.django_db

TYPE = job_types.anything.name


def test_inv_004_unit_the_order_is_one_and_the_claims_index_has_it() -> None:
    assert DISPATCH_ORDER == ("-priority", "position", "created_at", "id")
    with connection.cursor() as cursor:
        known = connection.introspection.get_constraints(cursor, Job._meta.db_table)
    assert known["job_order"]["columns"] == ["priority", "position", "created_at", "id"]
    assert known["job_order"]["orders"] == ["DESC", "ASC", "ASC", "ASC"]


def test_inv_004_integration_jobs_start_in_that_order() -> None:
    now = timezone.now()
    keys = list(product((0, 25, 75), (-5, 0, 9), (0, 60)))
    random.Random(4).shuffle(keys)
    for priority, position, age in keys:
        JobFactory.create(priority=priority, position=position, created_at=now - timedelta(seconds=age))
    started = []
    while (job := executor.claim_next()) is not None:
        started.append((-job.priority, job.position, job.created_at))
        executor.complete(job)
    assert len(started) == len(keys)
    assert started == sorted(started)


def test_inv_004_integration_only_what_cannot_run_is_overtaken() -> None:
    later = job_services.enqueue(TYPE, priority=100, not_before=timezone.now() + timedelta(hours=1))
    busy = executor.claim(job_services.enqueue(TYPE, priority=99, target="book-1"))
    waiting = job_services.enqueue(TYPE, priority=98, target="book-1")
    low = job_services.enqueue(TYPE, priority=0)
    assert executor.claim_next() == low
    executor.complete(busy)
    assert executor.claim_next() == waiting
    job_services.update(later.pk, {"not_before": None})
    assert executor.claim_next() == later


def test_inv_004_error_a_priority_out_of_range_is_refused_by_the_services_and_by_the_database() -> None:
    for wrong in (-1, 101):
        with pytest.raises(InvalidInput):
            job_services.enqueue(TYPE, priority=wrong)
        with pytest.raises(IntegrityError, match="job_priority_range"), transaction.atomic():
            JobFactory.create(priority=wrong)
    assert not Job.objects.exists()
