"""INV-001: once a job was dispatched, its params, type, tenant and target are frozen for good."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction

from jobs.engine import finish
from jobs.errors import InvalidOperationError
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import JobFacts, Status, refusal
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

TYPE = job_types.note.name
CHANGES: list[dict[str, Any]] = [{"params": {}}, {"job_type": "x"}, {"tenant": "x"}, {"dispatched_at": None}]


@pytest.mark.parametrize("status", Status)
def test_inv_001_unit_the_guard_asks_for_the_dispatch_and_not_for_the_state(status: Status) -> None:
    for field in ("params", "job_type", "tenant", "target"):
        refused = refusal("update", JobFacts(uuid4(), status, is_dispatched=True), [field])
        assert refused is not None
        assert (refused.code, refused.field) == ("invalid_operation", field)
        assert refused.message == f"Cannot modify {field} after dispatch"


@pytest.mark.django_db
def test_inv_001_integration_a_job_that_returns_to_the_queue_is_still_frozen() -> None:
    job = job_services.enqueue(TYPE, {"text": "first"})
    job_services.update(job.pk, {"params": {"text": "second"}})
    running = executor.claim(job)
    assert running.lease_token is not None
    finish.hand_back(job.pk, running.lease_token, actor=executor.WORKER, reason="worker shut down")
    assert Job.objects.get(pk=job.pk).status == Status.QUEUED
    with pytest.raises(InvalidOperationError):
        job_services.update(job.pk, {"params": {"text": "third"}})
    job_services.resume(job_services.pause(job.pk).pk)
    with pytest.raises(InvalidOperationError):
        job_services.update(job.pk, {"target": "elsewhere"})
    ended = executor.complete(executor.claim(job))
    assert ended.params == {"text": "second"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change", [{"params": {}}, {"job_type": "x"}, {"tenant": "x"}, {"dispatched_at": None}], ids=str
)
def test_inv_001_error_the_orm_cannot_change_a_dispatched_job_either(change: dict[str, Any]) -> None:
    job = JobFactory.create(queued=True, started=True)
    before = dump_tables()
    with pytest.raises(IntegrityError, match="INV-001"), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(**change)
    for name, value in change.items():
        setattr(job, name, value)
    with pytest.raises(IntegrityError, match="INV-001"), transaction.atomic():
        job.save()
    assert dump_tables() == before


@pytest.mark.django_db
def test_inv_001_error_the_rest_of_a_dispatched_job_can_still_be_written() -> None:
    job = JobFactory.create(running=True)
    job.progress = 0.5
    job.save()
    assert Job.objects.get(pk=job.pk).progress == 0.5
