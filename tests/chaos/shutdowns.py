"""SIGTERM at random moments: exit 0, nothing RUNNING without an owner, no attempt used up."""

from __future__ import annotations

import random
import time
from typing import Any
from uuid import UUID

from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, WorkerProcess, wait_until_all_ended

HASTY = {**LONG_LEASE_SETTINGS, "SHUTDOWN_GRACE_SEC": 0.2}
JOBS_A_ROUND = 30
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sample.noop", {}),
    ("sample.work", {"seconds": 0.05}),
    ("sample.sleepy", {"seconds": 1.0}),
    ("sample.nap", {"seconds": 1.0}),
    ("sample.count", {"upto": 40, "pace": 0.02}),
)


def run(fleet: Fleet, chance: random.Random, *, rounds: int, sabotage: str = "") -> SuiteReport:
    verdict = SuiteReport()
    ids: list[UUID] = []
    for number in range(rounds):
        ids += submit(chance)
        executor = chance.choice(("thread", "thread", "process"))
        workers = fleet.start_many(2, "--concurrency=4", f"--executor={executor}", settings=HASTY, sabotage=sabotage)
        for worker in workers:
            time.sleep(chance.uniform(0, 0.6))  # a random moment is the point; nothing is waited for
            worker.terminate()
        for worker in workers:
            judge_end(verdict, number, worker)
    handed_back = JobEvent.objects.filter(kind=EventKind.HANDED_BACK).count()
    fleet.start("--concurrency=32", settings=LONG_LEASE_SETTINGS)  # most rounds leave some behind
    wait_until_all_ended(120 + 6 * rounds, fleet)
    judge_jobs(verdict, ids)
    verdict.note(rounds=rounds, workers=2 * rounds, jobs=len(ids), handed_back=handed_back)
    return verdict


def submit(chance: random.Random) -> list[UUID]:
    made = []
    for _ in range(JOBS_A_ROUND):
        kind, params = chance.choice(KINDS)
        lane = f"lane-{chance.randrange(8)}" if chance.random() < 0.5 else None
        made.append({"job_type": kind, "params": params, "target": lane})
    return job_services.enqueue_many(made)


def judge_end(verdict: SuiteReport, number: int, worker: WorkerProcess) -> None:
    code = worker.wait_for_end()
    verdict.require(code == 0, f"round {number}: exit code {code}\n{worker.output}")
    left = Job.objects.filter(status=Status.RUNNING, lease_owner__startswith=f"{worker.name}@")
    verdict.broken += [f"round {number}: {item} is RUNNING and its worker is gone" for item in left]
    verdict.require("Traceback" not in worker.output, f"round {number}: {worker.output}")


def judge_jobs(verdict: SuiteReport, ids: list[UUID]) -> None:
    verdict.broken += [f"{job} is {job.status}" for job in Job.objects.exclude(status=Status.COMPLETED)]
    verdict.require(Job.objects.count() == len(ids), f"{Job.objects.count()} jobs, {len(ids)} were submitted")
    verdict.broken += [f"{job} used {job.attempt} attempts" for job in Job.objects.exclude(attempt=1)]
