"""Four workers of four slots over lanes and limits: every job once, lanes in order, no limit ever exceeded."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from jobs.models import Job, JobRun
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.chaos.report import SuiteReport
from tests.support.ledger import HandlerCall, compute_utilization, count_most_at_once, find_overlaps, group_calls
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until_all_ended

WORKERS, SLOTS = 4, 4
GLOBAL, RARE, POOL = 8, 3, 2
LIMITS = {"global": GLOBAL, "job_type": {"sample.rare": RARE}, "resource": {"pool": POOL}}
BULK = 2000
REFUSED = ("unique", "duplicate key", "IntegrityError", "deadlock", "Traceback")


def run(
    fleet: Fleet,
    chance: random.Random,
    *,
    jobs: int,
    lanes: int,
    longest_sec: float = 0.06,
    settings: dict[str, Any] = LONG_LEASE_SETTINGS,
    sabotage: str = "",
) -> SuiteReport:
    verdict = SuiteReport()
    order = submit(chance, jobs, lanes, longest_sec)
    began = time.monotonic()
    fleet.start_many(WORKERS, f"--concurrency={SLOTS}", settings={**settings, "LIMITS": LIMITS}, sabotage=sabotage)
    wait_until_all_ended(60 + jobs * longest_sec, fleet)
    ran = fleet.ledger.list_calls()
    verdict.note(jobs=jobs, lanes=lanes, seconds=time.monotonic() - began)
    check_runs(verdict, ran, jobs)
    check_limits(verdict, ran)
    check_lanes(verdict, ran, order)
    verdict.broken += find_refusals(fleet)
    return verdict


def submit(chance: random.Random, jobs: int, lanes: int, longest_sec: float) -> dict[str, list[UUID]]:
    """Jobs of both types, one in ten in the pool, nine in ten in a lane. Returns the order of each lane."""
    order: dict[str, list[UUID]] = {}
    for start in range(0, jobs, BULK):
        items = [make_item(chance, number, lanes, longest_sec) for number in range(start, min(start + BULK, jobs))]
        for job_id, item in zip(job_services.enqueue_many(items), items, strict=True):
            if item["target"] is not None:
                order.setdefault(item["target"], []).append(job_id)
    return order


def make_item(chance: random.Random, number: int, lanes: int, longest_sec: float) -> dict[str, Any]:
    lane = f"lane-{chance.randrange(lanes)}" if chance.random() < 0.9 else None
    pool = "pool" if chance.random() < 0.1 else "default"
    params = {"lane": lane or "", "pool": pool, "number": number, "seconds": chance.uniform(0, longest_sec)}
    kind = "sample.rare" if chance.random() < 0.3 else "sample.work"
    return {"job_type": kind, "params": params, "target": lane, "resource": pool}


def check_runs(verdict: SuiteReport, ran: list[HandlerCall], jobs: int) -> None:
    calls = Counter(call.job for call in ran)
    verdict.require(len(calls) == jobs, f"{len(calls)} of {jobs} jobs ran")
    verdict.broken += [f"job {job} ran {n} times" for job, n in calls.items() if n > 1]
    ended = dict(Counter(Job.objects.values_list("status", flat=True)))
    verdict.require(ended == {Status.COMPLETED: jobs}, f"the jobs ended as {ended}")
    verdict.require(JobRun.objects.filter(status=Status.COMPLETED).count() == jobs, "not every job has one run")


def check_limits(verdict: SuiteReport, ran: list[HandlerCall]) -> None:
    rare = [call for call in ran if call.type == "sample.rare"]
    pool = [call for call in ran if call.facts["pool"] == "pool"]
    for name, calls, limit in (("at_once", ran, GLOBAL), ("rare_at_once", rare, RARE), ("pool_at_once", pool, POOL)):
        peak = count_most_at_once(calls)
        verdict.note(**{name: f"{peak}/{limit}"})
        verdict.require(peak <= limit, f"{peak} of {name.removesuffix('_at_once')} ran at once, {limit} are allowed")
    verdict.note(handlers_at_work=f"{compute_utilization(ran, GLOBAL):.0%}")


def check_lanes(verdict: SuiteReport, ran: list[HandlerCall], order: dict[str, list[UUID]]) -> None:
    laned = [call for call in ran if call.facts["lane"]]
    verdict.broken += find_overlaps(laned, lambda call: call.facts["lane"])
    for lane, found in group_calls(laned, lambda call: call.facts["lane"]).items():
        started = [item.job for item in found]
        verdict.require(started == [str(item) for item in order[str(lane)]], f"{lane}: not in the order of submission")


def find_refusals(fleet: Fleet) -> Iterator[str]:
    for worker in fleet.workers:
        for line in worker.output.splitlines():
            if any(word in line for word in REFUSED):
                yield f"{worker.log_path.name}: {line}"
