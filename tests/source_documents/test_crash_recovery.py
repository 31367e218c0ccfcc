"""What a killed product leaves behind, as the source documents require it of the next start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobs.services import tokens
from tests.source_documents.conftest import Scheduler
from tests.support.product import run_product
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet

PATIENT = {**LONG_LEASE_SETTINGS, "LEASE_SEC": 600, "GRACE_SEC": 600}  # longer than any test: no lease runs out


@pytest.fixture(scope="module")
def killed(module_fleet: Fleet) -> Iterator[tuple[Scheduler, str, str]]:
    """Return the product after a kill of all its processes, started again, with the job that ran and one that waited.

    Started as `make run` starts it, with its default name and the default limit of one job.
    """
    _, token = tokens.create("client", scopes=["read", "submit", "operate"])
    with run_product(module_fleet, settings=PATIENT) as product:
        scheduler = Scheduler(product, module_fleet, token)
        running = scheduler.submit("sample.long_once", {"seconds": 600})
        scheduler.wait_for(running, "RUNNING")
        waiting = scheduler.submit("sample.noop")
        product.kill()
    with run_product(module_fleet, settings=PATIENT) as product:
        yield Scheduler(product, module_fleet, token), running, waiting


def get_failed(killed: tuple[Scheduler, str, str]) -> Any:
    scheduler, running, _waiting = killed
    return scheduler.wait_for(running, "FAILED")


def test_076_running_jobs_of_a_killed_product_fail_at_the_next_start(killed: tuple[Scheduler, str, str]) -> None:
    """Long before their leases end."""
    assert get_failed(killed)["status"] == "FAILED"


def test_077_their_error_is_scheduler_crash_recovery(killed: tuple[Scheduler, str, str]) -> None:
    assert get_failed(killed)["status_reason"] == "Scheduler crash recovery"


def test_217_the_queue_goes_on_with_what_waited_and_with_the_retry(killed: tuple[Scheduler, str, str]) -> None:
    scheduler, running, waiting = killed
    scheduler.wait_for(waiting, "COMPLETED")
    get_failed(killed)
    retry = scheduler.get(f"/api/jobs/{running}?follow=latest")
    assert (retry["attempt"], retry["retry_of"]) == (2, running)
    scheduler.wait_for(retry["id"], "COMPLETED")
