"""A host that pauses a limit and cancels a running job in one transaction, in both orders, beside workers.

Workers never wait for a limit while they hold a job, and wait for nothing while they hold a limit: so neither order
can deadlock with them, however long the host takes between the two.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from django.db import DatabaseError, transaction

from jobs.errors import Conflict
from jobs.models import Job, JobEvent, JobRun
from jobs.services import jobs as job_services
from jobs.services import limits
from jobs.services.groups import group
from jobs.states import TERMINAL, Status
from tests.chaos.lanes import count_deadlocks
from tests.chaos.many_workers import find_refusals
from tests.chaos.report import SuiteReport
from tests.support.ledger import count_most_at_once
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until, wait_until_all_ended

WORKERS, SLOTS, GLOBAL, LONG = 3, 4, 8, 5
SETTINGS = {
    **LONG_LEASE_SETTINGS,
    "POLL_SEC": 0.1,
    "HEARTBEAT_SEC": 0.2,
}  # on SQLite only heartbeats read stop requests
LIMITS = (("global", ""), ("job_type", "sample.sleepy"), ("job_type", "sample.work"))
ENOUGH, BATCH, LANES = 30, 20, 6
LONG_SEC = 2.0  # a host that holds its locks for longer sees each job end meanwhile
HELD_SEC = (0.0, 0.01, 0.03, 0.3)  # how long the host may take between the two
SLOWEST_SEC = 5.0  # no transaction waits for longer than the short ones of others
ABNORMAL = ("deadlock", "rolled back", "lost the leases", "not recorded", "cannot be reached")


def run(
    fleet: Fleet,
    chance: random.Random,
    *,
    rounds: int,
    slots: int = SLOTS,
    held_sec: Sequence[float] = HELD_SEC,
    sabotage: str = "",
) -> SuiteReport:
    verdict, host = SuiteReport(), Host(chance, held_sec)
    deadlocks = count_deadlocks()
    limits.set_maximum("global", maximum=GLOBAL)
    limits.set_maximum("job_type", "sample.sleepy", maximum=LONG)
    fleet.start_many(WORKERS, f"--concurrency={slots}", settings=SETTINGS, sabotage=sabotage)
    for number in range(rounds):
        wait_until(host.has_running, what=fleet.logs)
        host.change_both(limit_first=number % 2 == 0)
    wait_until_all_ended(120, fleet)
    verdict.broken += host.errors
    verdict.note(rounds=rounds, asked_to_stop=len(host.stopped), slowest_sec=host.slowest)
    verdict.require(host.slowest < SLOWEST_SEC, f"a host's transaction took {host.slowest:.1f} s")
    verdict.require(
        len(host.stopped) >= rounds // 2, f"only {len(host.stopped)} jobs were still running when cancelled"
    )
    found = count_deadlocks() - deadlocks
    verdict.require(not found, f"{found} deadlocks")
    judge(verdict, fleet, host)
    return verdict


def run_unordered(fleet: Fleet, chance: random.Random, *, rounds: int) -> SuiteReport:
    """Workers record and wait for limits in one transaction: a job that ends while the host holds a limit shows it.

    The host holds it for longer than any job takes. With one slot nothing else of the same worker ends first.
    """
    found = run(fleet, chance, rounds=rounds, slots=1, held_sec=[1.1 * LONG_SEC], sabotage="share_one_transaction")
    print(found)
    return SuiteReport(broken=[violation for violation in found.broken if "deadlock" in violation])


class Host:
    """An application that keeps the queue filled, and has transactions of its own over limits and jobs."""

    def __init__(self, chance: random.Random, held_sec: Sequence[float]) -> None:
        self.chance = chance
        self.held_sec = held_sec
        self.stopped: set[UUID] = set()  # asked to, while they were running
        self.errors: list[str] = []
        self.slowest = 0.0

    def submit(self) -> None:
        """Keep enough of them: long and short, in lanes and groups."""
        if Job.objects.exclude(status__in=sorted(TERMINAL)).count() >= ENOUGH:
            return
        items = [self._item() for _ in range(BATCH)]
        job_services.enqueue_many(items[2:])
        group(items[:2], name="pair").enqueue()

    def _item(self) -> dict[str, object]:
        lane = f"lane-{self.chance.randrange(LANES)}" if self.chance.random() < 0.3 else None
        if self.chance.random() < 0.6:
            return {"job_type": "sample.sleepy", "params": {"seconds": LONG_SEC}, "target": lane}
        return {"job_type": "sample.work", "params": {"seconds": self.chance.uniform(0, 0.05)}, "target": lane}

    def has_running(self) -> bool:
        self.submit()
        return self.running() is not None

    def running(self) -> UUID | None:
        """A long job to cancel: any, or the oldest, which may end in the same moment."""
        found = Job.objects.running().filter(job_type="sample.sleepy", cancel_requested=False)
        ids = list(found.order_by("dispatched_at").values_list("pk", flat=True))
        return ids[0] if ids and self.chance.random() < 0.3 else self.chance.choice(ids) if ids else None

    def change_both(self, *, limit_first: bool) -> None:
        """Pause a limit and cancel a job in one transaction; then lift the pause, in another."""
        scope, key = self.chance.choice(LIMITS)
        job_id = self.running()
        if job_id is None:
            return
        began = time.monotonic()
        try:
            with transaction.atomic():
                if limit_first:
                    limits.pause(scope, key, reason="the host's work")
                    self._hold()
                    self._cancel(job_id)
                else:
                    self._cancel(job_id)
                    self._hold()
                    limits.pause(scope, key, reason="the host's work")
            self.slowest = max(self.slowest, time.monotonic() - began)
        except DatabaseError as error:
            order = "limit first" if limit_first else "job first"
            self.errors.append(f"the host's transaction ({order}) failed: {error}")
        limits.unpause(scope, key)

    def _hold(self) -> None:
        time.sleep(self.chance.choice(self.held_sec))  # the host's own work

    def _cancel(self, job_id: UUID) -> None:
        try:
            job_services.cancel(job_id)
        except Conflict:  # it has ended since
            return
        self.stopped.add(job_id)


def judge(verdict: SuiteReport, fleet: Fleet, host: Host) -> None:
    ended = Counter(Job.objects.values_list("status", flat=True))
    verdict.note(**{status.lower(): n for status, n in ended.items()})
    # A handler that had finished already when its stop request came is COMPLETED all the same.
    cancelled = set(Job.objects.filter(status=Status.CANCELLED).values_list("pk", flat=True))
    verdict.require(set(ended) <= {Status.COMPLETED, Status.CANCELLED}, f"the jobs ended as {dict(ended)}")
    verdict.require(cancelled <= host.stopped, "a job was cancelled that nobody asked to stop")
    verdict.require(len(cancelled) >= len(host.stopped) // 2, f"{len(cancelled)} of {len(host.stopped)} obeyed")
    terminal = Counter(JobEvent.objects.filter(kind__in=[*TERMINAL]).values_list("job_id", flat=True))
    verdict.require(set(terminal.values()) == {1}, "a job has ended more than once")
    verdict.require(len(terminal) == ended.total(), f"{len(terminal)} of {ended.total()} jobs have a terminal event")
    verdict.require(not JobRun.objects.open().exists(), "a run is left open")
    ran = fleet.ledger.list_calls()
    calls = Counter(call.job for call in ran)
    verdict.broken += [f"job {job} ran {times} times" for job, times in calls.items() if times > 1]
    verdict.require(len(calls) == ended.total(), f"{len(calls)} of {ended.total()} jobs ran")
    long = [call for call in ran if call.type == "sample.sleepy"]
    for name, calls, limit in (("at_once", ran, GLOBAL), ("long_at_once", long, LONG)):
        verdict.note(**{name: f"{count_most_at_once(calls)}/{limit}"})
        verdict.require(
            count_most_at_once(calls) <= limit, f"{count_most_at_once(calls)} ran at once, {limit} are allowed"
        )
    verdict.broken += find_refusals(fleet)
    for worker in fleet.workers:
        lines = [line for line in worker.output.splitlines() if any(word in line for word in ABNORMAL)]
        verdict.broken += [f"{worker.log_path.name}: {line}" for line in lines]
