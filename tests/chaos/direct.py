"""Direct calls against a busy queue, through a real web process: what runs, direct calls as they came, the queue."""

from __future__ import annotations

import random
import time
from typing import Any

from jobs.models import Lease
from jobs.services import jobs as job_services
from jobs.states import CRASH_RECOVERY_REASON, Status
from tests.chaos.report import SuiteReport
from tests.support.web_process import WebProcess
from tests.support.worker_processes import (
    FAST_SETTINGS,
    LONG_LEASE_SETTINGS,
    Fleet,
    wait_for_status,
    wait_until,
    wait_until_all_ended,
)

ONE = {**LONG_LEASE_SETTINGS, "LIMITS": {"global": 1}}


def run(fleet: Fleet, chance: random.Random, *, rounds: int, sabotage: str = "") -> SuiteReport:
    """One job runs, two are queued, two direct calls come: they run second and third, every time."""
    verdict = SuiteReport()
    fleet.start_many(2, "--concurrency=2", settings=ONE, sabotage=sabotage)
    began, waited = time.monotonic(), 0
    with WebProcess(fleet, ONE) as web:
        for number in range(rounds):
            waited += one_round(verdict, fleet, web, number)
    verdict.note(rounds=rounds, seconds=time.monotonic() - began, waited_ms=waited // max(2 * rounds, 1))
    verdict.require(not Lease.objects.filter(ended_at=None).exists(), "a reservation is left")
    return verdict


def one_round(verdict: SuiteReport, fleet: Fleet, web: WebProcess, number: int) -> int:
    """Returns how long its direct calls had waited, in milliseconds."""
    gate = fleet.home / f"gate-{number}"
    running = job_services.enqueue("sample.deaf", {"gate": str(gate)})
    wait_until(lambda: fleet.ledger.read_job_lines(running.pk, "start"), what=fleet.logs)
    queued = [
        job_services.enqueue("sample.work", {"number": 10 * number + n}, priority=p) for n, p in ((3, 100), (4, 50))
    ]
    calls = []
    for place in (1, 2):
        calls.append(web.call("sample.work", {"number": 10 * number + place, "seconds": 0.02}))
        wait_until(lambda place=place: waiting() == place, what=f"call {place} of round {number} stands in line")
    gate.touch()
    answers = [call.wait_for_response() for call in calls]
    for job in queued:
        wait_for_status(job.pk, Status.COMPLETED, fleet=fleet)
    expected = [f"job {running.pk}", *(f"number {10 * number + n}" for n in (1, 2, 3, 4))]
    found = list_started(fleet, number, str(running.pk))
    verdict.require(found == expected, f"round {number} ran as {found}")
    results = [answer.get("result") if isinstance(answer, dict) else answer for answer in answers]
    verdict.require(results == [10 * number + 1, 10 * number + 2], f"round {number} answered {answers}")
    return sum(answer.get("waited_ms", 0) for answer in answers if isinstance(answer, dict))


def list_started(fleet: Fleet, number: int, first: str) -> list[str]:
    """What began in this round, in order."""
    found = []
    for line in sorted(fleet.ledger.read_lines("start"), key=lambda line: line["at"]):
        if line["job"] == first:
            found.append(f"job {first}")
        elif line.get("number", -1) // 10 == number:
            found.append(f"number {line['number']}")
    return found


def waiting() -> int:
    return Lease.objects.filter(kind="DIRECT", granted_at=None, ended_at=None).count()


def run_killed(
    fleet: Fleet, chance: random.Random, *, rounds: int, waits: bool = False, housekeeping: bool = True
) -> SuiteReport:
    """The web process dies in the middle of a direct call, or while it waits: the queue goes on within the lease."""
    verdict = SuiteReport()
    settings: dict[str, Any] = {**FAST_SETTINGS, "POLL_SEC": 0.2, "LIMITS": {"global": 1}}
    fleet.start(*([] if housekeeping else ["--no-housekeeping"]), settings=settings)
    slowest = 0.0
    for number in range(rounds):
        slowest = max(slowest, one_kill(verdict, fleet, settings, number, waits))
    verdict.note(rounds=rounds, slowest_sec=slowest)
    return verdict


def one_kill(verdict: SuiteReport, fleet: Fleet, settings: dict[str, Any], number: int, waits: bool) -> float:
    gate = fleet.home / f"killed-{number}"
    first = job_services.enqueue("sample.deaf", {"gate": str(gate)}) if waits else None
    if first is not None:
        wait_until(lambda: fleet.ledger.read_job_lines(first.pk, "start"), what=fleet.logs)
    with WebProcess(fleet, settings) as web:
        web.call("sample.deaf", {"gate": str(fleet.home / "never")})
        live = Lease.objects.filter(ended_at=None, granted_at__isnull=waits)
        wait_until(live.exists, what="the direct call has its lease")
        queued = job_services.enqueue("sample.noop")
        gate.touch()
        if first is not None:
            wait_for_status(first.pk, Status.COMPLETED, fleet=fleet)
            verdict.require(not fleet.ledger.read_job_lines(queued.pk), "the queue overtook a direct call")
        web.kill()
    died = time.monotonic()
    wait_until_all_ended(60, fleet)
    took = float(fleet.ledger.read_job_lines(queued.pk, "start")[0]["at"]) - died
    allowed = settings["LEASE_SEC"] + settings["POLL_SEC"] + 1
    verdict.require(took <= allowed, f"the queue went on {took:.1f} s after the kill, {allowed:.1f} s are allowed")
    (outcome,) = set(Lease.objects.values_list("outcome", flat=True))
    verdict.require(outcome == CRASH_RECOVERY_REASON, f"the lease ended as {outcome!r}")
    return took
