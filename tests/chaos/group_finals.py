"""Groups of five with a final job, whose members end in the same instant on five workers: it runs once."""

from __future__ import annotations

import random
import time
from collections import Counter

from jobs.models import GroupStatus, Job, JobGroup
from jobs.services.groups import group
from jobs.states import Status
from tests.chaos.many_workers import find_refusals
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until

SIZE = 5
SLOTS = 10
STARTABLE = (Status.QUEUED, Status.DISPATCHING, Status.RUNNING)


def run(fleet: Fleet, chance: random.Random, *, groups: int, sabotage: str = "", slots: int = SLOTS) -> SuiteReport:
    """Each member of a group has a worker of its own; the final job is for all of them."""
    verdict = SuiteReport()
    how = {"settings": LONG_LEASE_SETTINGS, "sabotage": sabotage, "wait": False}
    resources = [f"part-{number}" for number in range(SIZE)]
    workers = [fleet.start(f"--resources={name},default", f"--concurrency={slots}", **how) for name in resources]
    fleet.wait_until_started(*workers)
    began = time.monotonic()
    for number in range(groups):
        members = [
            {"job_type": "sample.part", "params": {"number": number * SIZE + index}, "resource": resources[index]}
            for index in range(SIZE)
        ]
        group(members, then={"job_type": "sample.total"}, name=str(number)).enqueue()
    # The end of the last member releases the final job in the same transaction: what is PENDING now stays so.
    startable = Job.objects.filter(status__in=STARTABLE)
    wait_until(lambda: not startable.exists(), 60 + groups * 0.5, lambda: f"{startable.count()} jobs end")
    verdict.note(groups=groups, seconds=time.monotonic() - began)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait_for_end()
    judge(verdict, fleet, groups)
    return verdict


def judge(verdict: SuiteReport, fleet: Fleet, groups: int) -> None:
    ended = dict(Counter(JobGroup.objects.values_list("status", flat=True)))
    verdict.require(ended == {GroupStatus.COMPLETED: groups}, f"the groups ended as {ended}")
    starts = Counter(call["group"] for call in fleet.ledger.read_lines("start") if call["type"] == "sample.total")
    verdict.require(len(starts) == groups, f"{len(starts)} of {groups} final jobs ran")
    verdict.broken += [
        f"the final job of group {item} ran {times} times" for item, times in starts.items() if times > 1
    ]
    finals = Job.objects.filter(job_type="sample.total", status=Status.COMPLETED)
    results = dict(finals.values_list("group__name", "run__artifacts"))
    for name, artifacts in results.items():
        expected = [int(name) * SIZE + index for index in range(SIZE)]
        verdict.require(artifacts["result"] == expected, f"the final job of group {name} got {artifacts['result']}")
    verdict.broken += find_refusals(fleet)
