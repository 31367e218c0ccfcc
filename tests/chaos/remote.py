"""Two remote workers, the Python and the shell example, and a local one: every job once, lanes and limits kept."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any
from uuid import UUID

from jobs.actors import PYTHON
from jobs.models import JobRun
from jobs.services import jobs as job_services
from jobs.services import remote
from tests.chaos.many_workers import check_lanes, check_runs, find_refusals
from tests.chaos.report import SuiteReport
from tests.support.ledger import HandlerCall, count_most_at_once
from tests.support.remote_workers import ADDON, RemoteWorkers
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until_all_ended

SLOTS, GLOBAL, RARE = 3, 6, 2
LIMITS = {"global": GLOBAL, "job_type": {"remote.rare": RARE}}
SETTINGS = {**LONG_LEASE_SETTINGS, "LIMITS": LIMITS}
LONGEST_SEC = 0.02


def run(fleet: Fleet, chance: random.Random, *, jobs: int, lanes: int) -> SuiteReport:
    verdict = SuiteReport()
    order = submit(chance, jobs, lanes)
    began = time.monotonic()
    with RemoteWorkers(fleet) as crew:
        url = crew.start_server(settings=SETTINGS)
        crew.start_python_worker(url, f"--slots={SLOTS}")
        crew.start_shell_worker(url)
        fleet.start(f"--concurrency={SLOTS}", settings=SETTINGS)
        wait_until_all_ended(60 + jobs * 0.5, fleet)
        verdict.broken += [
            f"{process.name}: {line}" for process in crew.programs for line in _complaints(process.output)
        ]
    ran = fleet.ledger.list_calls()
    verdict.note(jobs=jobs, lanes=lanes, seconds=time.monotonic() - began)
    check_runs(verdict, ran, jobs)
    check_lanes(verdict, ran, order)
    judge_limits(verdict, ran)
    judge_shares(verdict)
    verdict.broken += find_refusals(fleet)
    return verdict


def submit(chance: random.Random, jobs: int, lanes: int) -> dict[str, list[UUID]]:
    """A third of them local, the others remote; half of them in lanes that both share. The order of each lane."""
    order: dict[str, list[UUID]] = {}
    for number in range(jobs):
        lane = f"lane-{chance.randrange(lanes)}" if chance.random() < 0.5 else None
        params = {"lane": lane or "", "number": number, "seconds": chance.uniform(0, LONGEST_SEC)}
        job_id = _submit(chance, params, {"target": lane, "priority": "NORMAL"})
        if lane is not None:
            order.setdefault(lane, []).append(job_id)
    return order


def _submit(chance: random.Random, params: dict[str, Any], fields: dict[str, Any]) -> UUID:
    if chance.random() < 1 / 3:
        return job_services.enqueue("sample.work", params, **fields).pk
    kind = "remote.rare" if chance.random() < 0.2 else "remote.work"
    intent = {"addon_id": ADDON, "job_type": kind, "payload": params, **fields}
    return remote.submit(intent, actor=PYTHON)[0].pk


def judge_limits(verdict: SuiteReport, ran: list[HandlerCall]) -> None:
    rare = [call for call in ran if call.type == "remote.rare"]
    for name, calls, limit in (("at_once", ran, GLOBAL), ("rare_at_once", rare, RARE)):
        peak = count_most_at_once(calls)
        verdict.note(**{name: f"{peak}/{limit}"})
        verdict.require(peak <= limit, f"{peak} of {name.removesuffix('_at_once')} ran at once, {limit} are allowed")


def judge_shares(verdict: SuiteReport) -> None:
    """Each of the three had some of it."""
    owners = JobRun.objects.values_list("worker", flat=True)
    did = Counter(next((name for name in ("snake", "shell") if f":{name}#" in owner), "local") for owner in owners)
    verdict.note(**did)
    verdict.require(len(did) == 3, f"not all of them worked: {dict(did)}")


def _complaints(printed: str) -> list[str]:
    words = ("Traceback", "Error", "deadlock", "lease is lost", "no response", " 500 ", "(409)")
    return [line for line in printed.splitlines() if any(word in line for word in words)]
