"""A storm of kills and freezes: every chain completes once, lanes stay in order, all is recovered in time."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from django.db import connection

from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, EventKind, Status
from tests.chaos.report import SuiteReport
from tests.support.ledger import NEVER, HandlerCall, find_overlaps
from tests.support.worker_processes import FAST_SETTINGS, Fleet, WorkerProcess, wait_until

WORKERS, SLOTS, LANES = 3, 4, 12
RECOVERED_SEC = FAST_SETTINGS["LEASE_SEC"] + FAST_SETTINGS["GRACE_SEC"] + FAST_SETTINGS["RECOVERY_SEC"] + 1
BUSY_SEC = 2.0  # what a machine full of starting processes may add
LONGEST_JOB_SEC = 0.3


def run(fleet: Fleet, chance: random.Random, *, jobs: int, seconds: float, sabotage: str = "") -> SuiteReport:
    verdict = SuiteReport()
    order = submit(chance, jobs)
    storm = Storm(fleet, chance, sabotage)
    storm.rage(seconds)
    live = Job.objects.exclude(status__in=sorted(TERMINAL))
    patience = 120 + jobs * LONGEST_JOB_SEC
    wait_until(lambda: not live.exists(), patience, lambda: f"{live.count()} jobs end\n{fleet.logs()[-9000:]}")
    judge_chains(verdict, jobs)
    judge_recoveries(verdict)
    judge_ledger(verdict, storm, order)
    verdict.note(jobs=jobs, kills=len(storm.died), freezes=storm.freezes)
    return verdict


def submit(chance: random.Random, jobs: int) -> dict[UUID, str]:
    """Half of them in lanes; each may be tried as often as it takes. Returns the lane of each."""
    items = []
    for _ in range(jobs):
        lane = f"lane-{chance.randrange(LANES)}" if chance.random() < 0.5 else None
        seconds = chance.uniform(0, LONGEST_JOB_SEC)
        items.append(
            {
                "job_type": "sample.work",
                "params": {"lane": lane or "", "seconds": seconds},
                "target": lane,
                "max_retries": 1000,
            }
        )
    ids = job_services.enqueue_many(items)
    return {job_id: item["target"] or "" for job_id, item in zip(ids, items, strict=True)}  # type: ignore[misc]


@dataclass
class Storm:
    fleet: Fleet
    chance: random.Random
    sabotage: str = ""
    died: dict[int, float] = field(default_factory=dict)  # when each killed process was surely dead
    stopped: set[int] = field(default_factory=set)  # every process that ever stood still
    freezes: int = 0

    def rage(self, seconds: float) -> None:
        warden = self.fleet.start(
            "--name=warden", "--types=sample.add", wait=False
        )  # never killed: one worker must recover leases
        crew = [self.start(f"crew-{number}") for number in range(WORKERS)]
        self.fleet.wait_until_started(warden, *crew)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(self.chance.uniform(0.2, 1.0))  # the storm's own pace
            place = self.chance.randrange(WORKERS)
            if self.chance.random() < 0.6:
                crew[place] = self.kill(crew[place], place)
            else:
                self.freeze(crew[place])

    def start(self, name: str) -> WorkerProcess:
        options = (f"--name={name}", f"--concurrency={SLOTS}")
        return self.fleet.start(*options, sabotage=self.sabotage, wait=False)

    def kill(self, victim: WorkerProcess, place: int) -> WorkerProcess:
        """The next one may come back under the same name, or not."""
        victim.kill()
        self.died[victim.pid] = time.monotonic()
        name = f"crew-{place}" if self.chance.random() < 0.5 else f"crew-{place}-{victim.pid}"
        return self.start(name)

    def freeze(self, victim: WorkerProcess) -> None:
        """For less than a lease, or for more. On SQLite not inside a transaction: there everybody would stand still."""
        if " started: " not in victim.output:
            return
        self.freezes += 1
        self.stopped.add(victim.pid)
        if connection.vendor == "sqlite":
            victim.freeze()
        else:
            victim.signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.1, 2 * FAST_SETTINGS["LEASE_SEC"]))  # how long it stands still
        victim.unfreeze()


def judge_chains(verdict: SuiteReport, jobs: int) -> None:
    tails = Job.objects.latest_attempts()
    verdict.require(tails.count() == jobs, f"{tails.count()} chains, {jobs} were submitted")
    verdict.broken += [f"{job} ended {job.status}" for job in tails.exclude(status=Status.COMPLETED)]
    known = {"lease expired", "Scheduler crash recovery"}
    failed = Counter(Job.objects.filter(status=Status.FAILED).values_list("status_reason", flat=True))
    verdict.note(**{reason.replace(" ", "_").lower(): n for reason, n in failed.items()})
    verdict.broken += [f"{n} jobs failed with {reason!r}" for reason, n in failed.items() if reason not in known]


def judge_recoveries(verdict: SuiteReport) -> None:
    ended = JobEvent.objects.filter(kind=EventKind.FAILED).values_list("at", "data")
    took = [(at - datetime.fromisoformat(data["last_beat_at"])).total_seconds() for at, data in ended]
    slowest = max(took, default=0.0)
    verdict.note(slowest_recovery=slowest)
    allowed = RECOVERED_SEC + BUSY_SEC
    verdict.require(slowest <= allowed, f"a recovery took {slowest:.1f} s from the last beat, {allowed:.1f} s allowed")


def judge_ledger(verdict: SuiteReport, storm: Storm, order: dict[UUID, str]) -> None:
    """Only a process that stood still may have run beside its successor."""
    first = first_of_chains()
    ran = [close_call(call, storm.died) for call in storm.fleet.ledger.list_calls() if call.pid not in storm.stopped]
    verdict.broken += find_overlaps(ran, lambda call: first[UUID(call.job)])
    verdict.broken += find_overlaps([call for call in ran if call.facts["lane"]], lambda call: call.facts["lane"])
    completed = JobEvent.objects.filter(kind=EventKind.COMPLETED).order_by("id").values_list("job_id", flat=True)
    done = [first[job] for job in completed]
    for lane in sorted(set(order.values()) - {""}):
        wanted = [item for item, where in order.items() if where == lane]
        verdict.require([item for item in done if order[item] == lane] == wanted, f"{lane}: not in order")


def close_call(stretch: HandlerCall, died: dict[int, float]) -> HandlerCall:
    return replace(stretch, end=died.get(stretch.pid, NEVER)) if stretch.end == NEVER else stretch


def first_of_chains() -> dict[UUID, UUID]:
    """The first job of each job's chain."""
    older = dict(Job.objects.values_list("pk", "retry_of_id"))
    first: dict[UUID, UUID] = {}
    for item in older:
        root = item
        while (before := older[root]) is not None:
            root = before
        first[item] = root
    return first
