"""Admission by capacity among many workers: with a hundred cost units and jobs of thirty, never more than three."""

from __future__ import annotations

import random
import time
from collections import Counter

from jobs.models import JobEvent
from jobs.services import jobs as job_services
from jobs.states import EventKind
from tests.chaos.many_workers import check_runs, find_refusals
from tests.chaos.report import SuiteReport
from tests.support.ledger import count_most_at_once
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until_all_ended

WORKERS, SLOTS, MOST = 4, 4, 3
SETTINGS = {
    **LONG_LEASE_SETTINGS,
    "POLL_SEC": 0.05,
    "LIMITS": {"global": None},
    "ADMISSION_POLICY": "jobs.policies.admission.Capacity",
    "ADMISSION": {"quiet_load": 900, "busy_load": 1000, "streak_sec": 0},  # whatever else this machine is doing
}


def run(fleet: Fleet, chance: random.Random, *, jobs: int, sabotage: str = "") -> SuiteReport:
    verdict = SuiteReport()
    items = [
        {
            "job_type": "sample.work",
            "params": {"number": number, "seconds": chance.uniform(0.05, 0.25)},
            "cost_units": 30,
            "priority": chance.choice((25, 50, 75)),
        }
        for number in range(jobs)
    ]
    job_services.enqueue_many(items)
    began = time.monotonic()
    fleet.start_many(WORKERS, f"--concurrency={SLOTS}", settings=SETTINGS, sabotage=sabotage)
    wait_until_all_ended(60 + jobs, fleet)
    ran = fleet.ledger.list_calls()
    peak = count_most_at_once(ran)
    verdict.note(jobs=jobs, at_once=f"{peak}/{MOST}", seconds=time.monotonic() - began)
    check_runs(verdict, ran, jobs)
    verdict.require(peak <= MOST, f"{peak} ran at once, {MOST} fit")
    verdict.require(peak == MOST, "the capacity was never used")
    judge_events(verdict, jobs)
    verdict.broken += find_refusals(fleet)
    return verdict


def judge_events(verdict: SuiteReport, jobs: int) -> None:
    """There is one reason to be denied here: at most one event of it a job, however often it was asked about."""
    denied = Counter(JobEvent.objects.filter(kind=EventKind.DENIED).values_list("job_id", flat=True))
    admitted = Counter(JobEvent.objects.filter(kind=EventKind.ADMITTED).values_list("job_id", flat=True))
    verdict.note(denied=denied.total())
    verdict.require(max(denied.values(), default=0) <= 1, "a job was denied in more than one event")
    verdict.require(denied.total() > 0, "nobody was ever denied")
    verdict.require(set(admitted.values()) == {1} and len(admitted) == jobs, "not every job was admitted once")
