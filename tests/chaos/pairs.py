"""Groups of two whose members end in the same instant on two workers: one end, and one word of it, each."""

from __future__ import annotations

import random
import time
from collections import Counter

from jobs.models import GroupStatus, JobGroup
from jobs.services.groups import group
from tests.chaos.many_workers import refusals
from tests.chaos.verdict import Verdict
from tests.support.worker_processes import STEADY, Fleet, await_all_ended

SLOTS = 20
SIDES = ("sample.left", "sample.right")  # a worker for each: both members of a pair are at work at once


def run(fleet: Fleet, chance: random.Random, *, groups: int, sabotage: str = "", slots: int = SLOTS) -> Verdict:
    """With one slot on each side the members of a pair are alone in ending, and do so side by side."""
    verdict = Verdict()
    told = ",".join(filter(None, ["hear_groups", sabotage]))
    how = {"settings": STEADY, "sabotage": told, "wait": False}
    fleet.await_started(*[fleet.start(f"--types={side}", f"--concurrency={slots}", **how) for side in SIDES])
    began = time.monotonic()
    for number in range(groups):
        group([{"job_type": side, "params": {"number": number}} for side in SIDES], name=f"pair {number}").enqueue()
    await_all_ended(60 + groups * 0.2, fleet)
    verdict.note(groups=groups, seconds=time.monotonic() - began)
    judge(verdict, fleet, groups)
    return verdict


def judge(verdict: Verdict, fleet: Fleet, groups: int) -> None:
    ended = dict(Counter(JobGroup.objects.values_list("status", flat=True)))
    verdict.require(ended == {GroupStatus.COMPLETED: groups}, f"the groups ended as {ended}")
    told = Counter(line["group"] for line in fleet.ledger.lines("group.finished"))
    verdict.require(len(told) == groups, f"the end of {len(told)} of {groups} groups was told")
    verdict.broken += [f"the end of group {each} was told {times} times" for each, times in told.items() if times > 1]
    verdict.broken += refusals(fleet)
