"""One hostile token against a quiet tenant, over HTTP: the quiet tenant's jobs start when they usually do.

The host lets tenants take turns (fair shares). The hostile token does everything that its scopes allow, all at once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from django.test import override_settings

from jobs.models import Job
from jobs.services import tokens
from jobs.states import Status
from tests.chaos import hostile_client
from tests.chaos.hostile_client import REQUEST_SEC, Client
from tests.chaos.report import SuiteReport
from tests.support.remote_workers import RemoteWorkers
from tests.support.webhook_receiver import run_receiver
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until
from webhooks import services as webhook_services

HOSTILE, QUIET = "hostile", "quiet"
SETTINGS: dict[str, Any] = {
    **LONG_LEASE_SETTINGS,
    "POLL_SEC": 1,
    "FAIRNESS_POLICY": "tests.sample_app.policies.by_tenant",
    "SYSTEM_JOB_TYPES": True,
    "WEBHOOK_ALLOW_PRIVATE": True,
}
LATER_SEC = 2.0  # than usual, at most
LOST_SEC = 60.0
MAX_RSS_MIB = 400
PACE_SEC = 1.0  # between jobs of the quiet tenant
REFUSALS = (503, 504)  # for now; any other answer from 500 on is a defect


def run(
    fleet: Fleet,
    chance: random.Random,
    *,
    seconds: float,
    calm_sec: float,
    members: int = 10_000,
    resources: int = 10_000,
) -> SuiteReport:
    verdict = SuiteReport()
    with override_settings(JOBSCHEDULER=SETTINGS), RemoteWorkers(fleet) as servers, run_receiver() as receiver:
        url = servers.start_server(settings=SETTINGS)
        worker = fleet.start("--concurrency=4", settings=SETTINGS)
        webhook_services.create(receiver.url, ["job.queued", "job.cancelled"], tenant=HOSTILE)
        quiet = Client(url, create_token(QUIET, "read", "submit"))
        hostile = Client(url, create_token(HOSTILE, "read", "submit", "operate"))
        calm = submit_jobs(quiet, calm_sec, first=0)
        with attack(hostile, members=members, resources=resources):
            stormy = submit_jobs(quiet, seconds, first=len(calm))
        await_jobs(verdict, [*calm, *stormy])
        judge_starts(verdict, fleet, calm, stormy)
        for name, pid in {"web": servers.programs[0].pid, "worker": worker.pid}.items():
            peak = read_peak_mib(pid)
            verdict.note(**{f"{name}_mib": peak})
            verdict.require(peak < MAX_RSS_MIB, f"the {name} process took {peak:.0f} MiB")
    judge_answers(verdict, quiet, hostile)
    return verdict


def create_token(tenant: str, *scopes: str) -> str:
    return tokens.create(tenant, tenant=tenant, scopes=scopes)[1]


# ---------------------------------------------------------------------- the quiet tenant


@dataclass(frozen=True)
class Submission:
    number: int
    began: float  # before the request, by the clock that the ledger uses
    job_id: UUID | None  # None: refused


def submit_jobs(client: Client, seconds: float, *, first: int) -> list[Submission]:
    """Submit a job every PACE_SEC; each request is waited for."""
    made: list[Submission] = []
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        number = first + len(made)
        answer = client.post("/jobs", {"job_type": "sample.work", "params": {"number": number}})
        made.append(Submission(number, began, UUID(answer["id"]) if answer else None))
        time.sleep(max(began + PACE_SEC - time.monotonic(), 0.0))  # the pace of a person, not a wait for anything
    return made


def await_jobs(verdict: SuiteReport, submissions: list[Submission]) -> None:
    """Wait for the end of the jobs; one that does not end in time is lost."""
    ids = [submission.job_id for submission in submissions if submission.job_id is not None]
    waiting = Job.objects.filter(pk__in=ids).exclude(status=Status.COMPLETED)
    with suppress(AssertionError):
        wait_until(lambda: not waiting.exists(), LOST_SEC, forgiving=True)
    lost = waiting.values_list("pk", "status", "gate", "created_at")
    verdict.broken += [f"job {pk} of the quiet tenant is {status}, {gate}, since {at}" for pk, status, gate, at in lost]


def judge_starts(verdict: SuiteReport, fleet: Fleet, calm: list[Submission], stormy: list[Submission]) -> None:
    starts: dict[str, list[float]] = {}
    for line in fleet.ledger.read_lines("start"):
        starts.setdefault(line["job"], []).append(line["at"])
    waits: dict[int, float] = {}
    for submission in [*calm, *stormy]:
        verdict.require(submission.job_id, f"job {submission.number} of the quiet tenant was refused")
        started = starts.get(str(submission.job_id), [])
        if submission.job_id is not None:
            verdict.require(len(started) <= 1, f"job {submission.number} of the quiet tenant ran {len(started)} times")
        if started:
            waits[submission.number] = started[0] - submission.began
    usual = max([waits[submission.number] for submission in calm if submission.number in waits], default=0.0)
    late = {number: wait for number, wait in waits.items() if wait > usual + LATER_SEC}
    verdict.note(jobs=len(waits), usual_sec=usual, longest_sec=max(waits.values(), default=0.0))
    verdict.broken += [f"job {number} of the quiet tenant started after {wait:.1f} s" for number, wait in late.items()]


# ---------------------------------------------------------------------- the hostile token


@contextmanager
def attack(client: Client, *, members: int, resources: int) -> Iterator[None]:
    """Let a process of its own attack meanwhile; add the answers that it got to those of this client."""
    command = [sys.executable, "-m", hostile_client.__name__, client.url, client.token, str(members), str(resources)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield
        printed, _ = process.communicate(timeout=REQUEST_SEC)
        client.answers.update({(what, status): count for what, status, count in json.loads(printed)})
    finally:
        process.kill()
        process.wait()


def judge_answers(verdict: SuiteReport, *clients: Client) -> None:
    answers = sum((client.answers for client in clients), Counter[tuple[str, int]]())
    verdict.note(requests=sum(answers.values()), refused=sum(n for (_, status), n in answers.items() if status >= 400))
    defects = {key: n for key, n in answers.items() if key[1] >= 500 and key[1] not in REFUSALS}
    verdict.broken += [f"{n}× {what} was answered with {status}" for (what, status), n in defects.items()]


def read_peak_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
