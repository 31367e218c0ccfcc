"""Groups of two whose members end in the same instant on two workers: each group ends once and is reported once."""

from __future__ import annotations

import random
import time
from collections import Counter

from jobs.models import GroupStatus, JobGroup
from jobs.services.groups import group
from tests.chaos.many_workers import find_refusals
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until_all_ended

SLOTS = 20
SIDES = ("sample.left", "sample.right")  # a worker for each: both members of a pair are at work at once


def run(fleet: Fleet, chance: random.Random, *, groups: int, sabotage: str = "", slots: int = SLOTS) -> SuiteReport:
    """With one slot on each side the members of a pair are alone in ending, and do so side by side."""
    verdict = SuiteReport()
    sabotages = ",".join(filter(None, ["record_group_ends", sabotage]))
    how = {"settings": LONG_LEASE_SETTINGS, "sabotage": sabotages, "wait": False}
    workers = [fleet.start(f"--types={side}", f"--concurrency={slots}", **how) for side in SIDES]
    fleet.wait_until_started(*workers)
    began = time.monotonic()
    for number in range(groups):
        group([{"job_type": side, "params": {"number": number}} for side in SIDES], name=f"pair {number}").enqueue()
    wait_until_all_ended(60 + groups * 0.2, fleet)
    verdict.note(groups=groups, seconds=time.monotonic() - began)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait_for_end()  # it has called the receivers of its last commit by then
    judge(verdict, fleet, groups)
    return verdict


def judge(verdict: SuiteReport, fleet: Fleet, groups: int) -> None:
    ended = dict(Counter(JobGroup.objects.values_list("status", flat=True)))
    verdict.require(ended == {GroupStatus.COMPLETED: groups}, f"the groups ended as {ended}")
    announced = Counter(line["group"] for line in fleet.ledger.read_lines("group.finished"))
    verdict.require(len(announced) == groups, f"the end of {len(announced)} of {groups} groups was reported")
    verdict.broken += [
        f"the end of group {item} was reported {times} times" for item, times in announced.items() if times > 1
    ]
    verdict.broken += find_refusals(fleet)
