"""Groups of five with a final job, whose members end in the same instant on five workers: it runs once.

In three of four groups a member fails, and `on_failure` decides about the final job.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

from jobs.models import GroupStatus, Job, JobGroup
from jobs.services.groups import group
from jobs.states import Status
from tests.chaos.many_workers import find_refusals
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until

SIZE = 5
SLOTS = 10
RULES = (None, "stop", "skip", "continue")  # `on_failure`; None: no member fails
ENDS = {"stop": Status.CANCELLED, "skip": Status.SKIPPED}  # of final jobs that do not run
STARTABLE = (Status.QUEUED, Status.DISPATCHING, Status.RUNNING)


def run(fleet: Fleet, chance: random.Random, *, groups: int, sabotage: str = "", slots: int = SLOTS) -> SuiteReport:
    """Each member of a group has a worker of its own; the final job is for all of them."""
    verdict = SuiteReport()
    how = {"settings": LONG_LEASE_SETTINGS, "sabotage": sabotage, "wait": False}
    resources = [f"part-{number}" for number in range(SIZE)]
    workers = [fleet.start(f"--resources={name},default", f"--concurrency={slots}", **how) for name in resources]
    fleet.wait_until_started(*workers)
    rules = [None if sabotage else RULES[number % len(RULES)] for number in range(groups)]
    failing = [None if rule is None else chance.randrange(SIZE) for rule in rules]
    began = time.monotonic()
    for number, rule in enumerate(rules):
        members = [
            {
                "job_type": "sample.part",
                "params": {"number": number * SIZE + index, "fails": index == failing[number]},
                "resource": resources[index],
            }
            for index in range(SIZE)
        ]
        group(members, then={"job_type": "sample.total"}, on_failure=rule, name=str(number)).enqueue()
    # The end of the last member releases the final job in the same transaction: what is PENDING now stays so.
    startable = Job.objects.filter(status__in=STARTABLE)
    wait_until(lambda: not startable.exists(), 60 + groups * 0.5, lambda: f"{startable.count()} jobs end")
    verdict.note(groups=groups, seconds=time.monotonic() - began)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait_for_end()
    judge(verdict, fleet, rules, failing)
    return verdict


def judge(verdict: SuiteReport, fleet: Fleet, rules: Sequence[str | None], failing: Sequence[int | None]) -> None:
    ended = Counter(JobGroup.objects.values_list("status", flat=True))
    expected_ends = Counter(GroupStatus.COMPLETED if rule is None else GroupStatus.PARTIAL for rule in rules)
    verdict.require(ended == expected_ends, f"the groups ended as {dict(ended)}, not as {dict(expected_ends)}")
    starts = Counter(call["group"] for call in fleet.ledger.read_lines("start") if call["type"] == "sample.total")
    expected_starts = sum(rule not in ENDS for rule in rules)
    verdict.require(len(starts) == expected_starts, f"{len(starts)} of {expected_starts} final jobs ran")
    verdict.broken += [
        f"the final job of group {item} ran {times} times" for item, times in starts.items() if times > 1
    ]
    finals = Job.objects.filter(job_type="sample.total").values_list("group__name", "status", "run__artifacts")
    for name, status, artifacts in finals:
        number = int(name)
        rule = rules[number] or ""
        expected = ENDS.get(rule, Status.COMPLETED)
        verdict.require(status == expected, f"the final job of group {name} ended {status}, with {rule}")
        if status == Status.COMPLETED:
            parts = [None if index == failing[number] else number * SIZE + index for index in range(SIZE)]
            verdict.require(artifacts["result"] == parts, f"the final job of group {name} got {artifacts['result']}")
    verdict.broken += find_refusals(fleet)
