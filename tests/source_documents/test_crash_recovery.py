"""What a killed product leaves behind, as the source documents require it of the next start."""

from __future__ import annotations

from jobs.services import tokens
from tests.source_documents.conftest import Scheduler
from tests.support.product import run_product
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet

PATIENT = {**LONG_LEASE_SETTINGS, "LEASE_SEC": 600, "GRACE_SEC": 600}  # longer than any test: no lease runs out


def test_076_077_217_running_jobs_of_a_killed_product_fail_at_the_next_start(fleet: Fleet) -> None:
    """Started as `make run` starts it, with its default name, and killed with all its processes."""
    _, token = tokens.create("client", scopes=["read", "submit", "operate"])
    with run_product(fleet, settings=PATIENT) as product:
        scheduler = Scheduler(product, fleet, token)
        job_id = scheduler.submit("sample.long_once", {"seconds": 600})
        scheduler.wait_for(job_id, "RUNNING")
        product.kill()
    with run_product(fleet, settings=PATIENT) as product:
        scheduler = Scheduler(product, fleet, token)
        failed = scheduler.wait_for(job_id, "FAILED")
        assert failed["status_reason"] == "Scheduler crash recovery"
        retry = scheduler.get(f"/api/jobs/{job_id}?follow=latest")
        assert (retry["attempt"], retry["retry_of"]) == (2, job_id)
        scheduler.wait_for(retry["id"], "COMPLETED")
