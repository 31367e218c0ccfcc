"""The product as `make run` starts it, killed at random moments and started again: the queue goes on at once."""

from __future__ import annotations

import random
import time
from collections import Counter
from functools import partial
from typing import Any

from jobs.models import Job, JobEvent, Worker
from jobs.services import jobs as job_services
from jobs.states import CRASH_RECOVERY_REASON, LIVE, EventKind, Status
from tests.chaos.kills import close_call, first_of_chains
from tests.chaos.report import SuiteReport
from tests.support.ledger import count_most_at_once
from tests.support.product import run_product
from tests.support.worker_processes import Fleet, wait_until, wait_until_all_ended

# Leases, grace and the limit of one job at a time are the defaults: a job of a dead process stops the whole queue.
SETTINGS: dict[str, Any] = {"RETRY_BASE_SEC": 0, "SHUTDOWN_GRACE_SEC": 5}
DISPATCH_SEC = 2.0  # from the start of a worker to its first job
BACKLOG = 20  # so many jobs wait at every start
LONGEST_JOB_SEC = 0.5
START_SEC = 3.0  # about as long as a start takes


def run(fleet: Fleet, chance: random.Random, *, kills: int) -> SuiteReport:
    report = SuiteReport()
    died: dict[int, float] = {}  # when the processes of each worker were surely dead, by its pid
    for _ in range(kills):
        fill_queue(chance)
        is_in_start = chance.random() < 0.25
        workers = Worker.objects.count()
        with run_product(fleet, settings=SETTINGS, wait=False) as product:
            if not is_in_start:
                wait_until(partial(has_dispatched, workers), 60, "a job starts")
            time.sleep(chance.uniform(0, START_SEC if is_in_start else 2 * LONGEST_JOB_SEC))  # the moment of the kill
            product.kill()
        died |= dict.fromkeys(Worker.objects.exclude(pid__in=died).values_list("pid", flat=True), time.monotonic())
    with run_product(fleet, settings=SETTINGS):
        wait_until_all_ended(60 + BACKLOG * LONGEST_JOB_SEC, fleet)
    judge_dispatches(report)
    judge_jobs(report)
    calls = [close_call(call, died) for call in fleet.ledger.list_calls()]
    peak = count_most_at_once(calls)
    report.require(peak == 1, f"{peak} handlers ran at once, one is allowed")
    report.note(kills=kills, jobs=len(set(first_of_chains().values())))
    return report


def fill_queue(chance: random.Random) -> None:
    missing = BACKLOG - Job.objects.filter(status__in=sorted(LIVE)).count()
    job_services.enqueue_many(
        [
            {
                "job_type": "sample.work",
                "params": {"seconds": chance.uniform(0, LONGEST_JOB_SEC)},
                "max_retries": 1000,
            }
            for _ in range(missing)
        ]
    )


def has_dispatched(known_workers: int) -> bool:
    """Return whether a worker beyond the known ones has started a job."""
    newest = Worker.objects.order_by("-started_at").first()
    if newest is None or Worker.objects.count() <= known_workers:
        return False
    return JobEvent.objects.filter(kind=EventKind.RUNNING, at__gte=newest.started_at).exists()


def judge_dispatches(report: SuiteReport) -> None:
    """Compare the start of each worker with its first job; one killed before that is not judged."""
    starts = list(Worker.objects.order_by("started_at").values_list("started_at", flat=True))
    took = []
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        events = JobEvent.objects.filter(kind=EventKind.RUNNING, at__gte=start)
        if following is not None:
            events = events.filter(at__lt=following)
        first = events.order_by("at").values_list("at", flat=True).first()
        if first is not None:
            took.append((first - start).total_seconds())
    slowest = max(took, default=0.0)
    report.note(starts=len(starts), judged=len(took), slowest_dispatch=slowest)
    report.require(took, "no worker has started a job")
    report.require(slowest <= DISPATCH_SEC, f"a first job started after {slowest:.1f} s, {DISPATCH_SEC:g} s allowed")


def judge_jobs(report: SuiteReport) -> None:
    """Each retry chain completes once; whatever failed was recovered from a crash."""
    latest = Job.objects.latest_attempts()
    report.broken += [f"{job} ended {job.status}" for job in latest.exclude(status=Status.COMPLETED)]
    failed = Counter(Job.objects.filter(status=Status.FAILED).values_list("status_reason", flat=True))
    report.note(recovered=failed.pop(CRASH_RECOVERY_REASON, 0))
    report.broken += [f"{count} jobs failed with {reason!r}" for reason, count in failed.items()]
    first = first_of_chains()
    completed = Counter(
        first[pk] for pk in JobEvent.objects.filter(kind=EventKind.COMPLETED).values_list("job_id", flat=True)
    )
    report.broken += [f"{pk} completed {count} times" for pk, count in completed.items() if count != 1]
