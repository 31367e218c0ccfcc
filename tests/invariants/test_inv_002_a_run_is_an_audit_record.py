"""INV-002: of a run only its end is written, and only once; who started it, and when, stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from jobs import invariants
from jobs.engine import finish
from jobs.models import JobRun
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

TYPE = job_types.note.name


def test_inv_002_unit_every_column_of_a_run_is_either_frozen_or_part_of_its_end() -> None:
    columns = {field.column for field in JobRun._meta.concrete_fields}
    assert set(invariants.RUN_OPEN) == {"finished_at", "status", "exit_code", "error", "artifacts"}
    assert {*invariants.RUN_FROZEN, *invariants.RUN_OPEN} == columns


@pytest.mark.django_db
def test_inv_002_integration_a_run_belongs_to_the_first_claim_until_its_end() -> None:
    job = job_services.enqueue(TYPE, {"text": "a"})
    running = executor.claim(job)
    first = (running.run.started_at, running.run.worker)
    assert running.lease_token is not None
    finish.hand_back(job.pk, running.lease_token, actor=executor.WORKER, reason="worker shut down")
    again = executor.claim(job)
    job_services.pause(job.pk)
    assert again.lease_token is not None
    finish.stop(job.pk, again.lease_token, actor=executor.WORKER)
    assert JobRun.objects.get(pk=job.pk).status == Status.RUNNING, "a paused job's run is open"
    job_services.resume(job.pk)
    ended = executor.complete(executor.claim(job))
    assert (ended.run.started_at, ended.run.worker) == first
    assert (ended.run.status, ended.run.exit_code) == ("COMPLETED", 0)


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["running", "completed"])
@pytest.mark.parametrize(
    "change", [{"worker": "x"}, {"started_at": timezone.now() + timedelta(hours=1)}], ids=["worker", "started_at"]
)
def test_inv_002_error_what_a_run_began_with_is_frozen(state: str, change: dict[str, Any]) -> None:
    _assert_refused(state, change)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": 9},
        {"error": "x"},
        {"artifacts": {"x": 1}},
        {"status": "FAILED"},
        {"finished_at": timezone.now() + timedelta(hours=1)},
        {"status": "RUNNING", "finished_at": None},
    ],
)
def test_inv_002_error_an_ended_run_is_frozen_altogether(change: dict[str, Any]) -> None:
    _assert_refused("completed", change)


def _assert_refused(state: str, change: dict[str, Any]) -> None:
    run = JobFactory.create(**{state: True}).run
    before = dump_tables()
    with pytest.raises(IntegrityError, match="INV-002"), transaction.atomic():
        JobRun.objects.filter(pk=run.pk).update(**change)
    assert dump_tables() == before
