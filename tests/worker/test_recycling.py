"""`worker --max-jobs` and `--max-rss`: running jobs finish, no attempt is used, a supervisor starts a fresh worker."""

from __future__ import annotations

import re

from jobs.engine.worker.recycling import Recycling
from jobs.models import Job, Worker
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.product import run_product
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import LONG_LEASE_SETTINGS, MANAGE, Fleet, wait_until, wait_until_all_ended


def assert_each_ran_once() -> None:
    for job in Job.objects.all():
        assert (job.status, job.attempt) == (Status.COMPLETED, 1)
        assert list_event_kinds(job) == ["SUBMITTED", "RUNNING", "COMPLETED"]


def test_a_worker_takes_no_more_than_max_jobs_and_finishes_them(fleet: Fleet) -> None:
    for _ in range(10):
        job_services.enqueue("sample.work", {"seconds": 0.3})
    worker = fleet.start("--max-jobs=4", "--concurrency=3", settings=LONG_LEASE_SETTINGS, wait=False)
    assert worker.wait_for_end() == 0, worker.output
    assert "recycling, 4 jobs claimed (--max-jobs 4)" in worker.output
    assert [Job.objects.filter(status=status).count() for status in (Status.COMPLETED, Status.QUEUED)] == [4, 6]
    assert (Worker.objects.get().state, len(fleet.ledger.list_calls())) == ("STOPPED", 4)
    Job.objects.filter(status=Status.QUEUED).delete()
    assert_each_ran_once()


def test_a_leaking_handler_ends_its_worker_and_loses_nothing(fleet: Fleet) -> None:
    """The slow job runs when the limit is passed; it is neither stopped nor handed back, whatever the grace."""
    job_services.enqueue("sample.work", {"seconds": 2.0}, priority="URGENT")
    for _ in range(6):
        job_services.enqueue("sample.leak", {"mib": 200})
    settings = {**LONG_LEASE_SETTINGS, "SHUTDOWN_GRACE_SEC": 0.1}
    workers = 0
    while Job.objects.exclude(status=Status.COMPLETED).exists():
        worker = fleet.start("--max-rss=450", "--concurrency=2", "--burst", settings=settings, wait=False)
        assert worker.wait_for_end() == 0, worker.output
        workers += 1
        assert workers < 8, fleet.logs()
    assert workers > 1  # one worker leaks up to four times: two jobs are claimed in the turn that records two
    assert re.search(r"recycling, \d+ MiB of memory in use \(--max-rss 450\); 2 jobs running", fleet.logs())
    assert_each_ran_once()


def test_memory_counts_after_the_first_job_only() -> None:
    """Else a limit below what the process needs to start would restart it without end, and no job would run."""
    recycling = Recycling(max_rss_mib=1)
    assert not recycling.check_limits()
    recycling.record_claims(1)
    assert recycling.check_limits()
    assert recycling.limit_claims(5) == 0


def test_runscheduler_starts_a_fresh_worker(fleet: Fleet) -> None:
    for _ in range(5):
        job_services.enqueue("sample.noop")
    with run_product(fleet, str(MANAGE), "runscheduler", "--port=0", "--max-jobs=2") as product:
        wait_until_all_ended(60, fleet)
        wait_until(lambda: len(re.findall("worker .* started: ", product.output)) >= 3, what=lambda: product.output)
        product.process.terminate()
        assert product.process.wait(30) == 0, product.output
    assert_each_ran_once()
