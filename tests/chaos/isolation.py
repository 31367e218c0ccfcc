"""Limits stay exact whatever isolation level the host asks for: of workers, offers to remote workers, direct calls.

A host has two ways to ask: a default of the database, and Django's OPTIONS["isolation_level"]. Its processes may also
differ in that: the way "both" gives the default to half of them and the option to the others.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.db import connection

from jobs.actors import PYTHON
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.services import remote
from jobs.states import Status
from tests.chaos.many_workers import find_refusals
from tests.chaos.report import SuiteReport
from tests.support.ledger import count_most_at_once
from tests.support.remote_workers import ADDON, RemoteWorkers
from tests.support.web_process import DirectCall
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until, wait_until_all_ended

LIMIT, WORKERS, SLOTS = 3, 4, 4
SETTINGS = {**LONG_LEASE_SETTINGS, "POLL_SEC": 0.05, "LIMITS": {"global": LIMIT}}
LEVELS = ("read committed", "repeatable read", "serializable")
WAYS = ("database", "options")
# One for each worker: under a strict level claims of the same jobs fail, those of different jobs exceed limits.
RESOURCES = [f"pool-{number}" for number in range(WORKERS)]
DIRECT_NUMBER = 1_000_000
NOT_SERIALIZED = "could not serialize"  # a request that the host's own level rolled back: its caller repeats it


class Case(NamedTuple):
    way: str  # how the host asks: "database", "options" or "both"
    level: str

    @property
    def is_default(self) -> bool:
        return self.way != "options"

    @property
    def environments(self) -> list[str]:
        """What ISOLATION is in the host's processes, by turns."""
        named = self.level.upper().replace(" ", "_")
        return {"database": ["DEFAULT"], "options": [named], "both": ["DEFAULT", named]}[self.way]


class Load(NamedTuple):
    jobs: int
    direct: int  # calls
    longest_sec: float = 0.06


def run(
    fleet: Fleet,
    chance: random.Random,
    *,
    jobs: int,
    direct: int,
    ways: Sequence[str] = WAYS,
    levels: Sequence[str] = LEVELS,
) -> SuiteReport:
    verdict = SuiteReport()
    for case in [Case(way, level) for way in ways for level in levels]:
        run_case(verdict, fleet, chance, case, Load(jobs, direct))
    verdict.note(jobs=jobs, direct=direct)
    return verdict


def run_unguarded(fleet: Fleet, chance: random.Random, *, jobs: int, direct: int) -> SuiteReport:
    """Take the protection out. Both ways of asking must show; and under READ COMMITTED nothing does."""
    load, kind = Load(jobs, direct, longest_sec=0.3), "keep_host_isolation"
    control, found = SuiteReport(), SuiteReport()
    run_case(control, fleet, chance, Case("both", "read committed"), load, kind)
    for way in WAYS:
        verdict = SuiteReport()
        run_case(verdict, fleet, chance, Case(way, "repeatable read"), load, kind)
        exceeded = [violation for violation in verdict.broken if "are allowed" in violation]
        print(verdict)
        if not exceeded:
            return SuiteReport()
        found.broken += exceeded
    print(control)
    return found if not control.broken else SuiteReport()


def run_case(
    verdict: SuiteReport, fleet: Fleet, chance: random.Random, case: Case, load: Load, sabotage: str = ""
) -> None:
    """Drain one queue with workers, remote workers and direct calls under the same limit."""
    began, done_before = time.monotonic(), Job.objects.count()
    submit(chance, load)
    with asked_of_the_database(case), RemoteWorkers(fleet) as crew:
        urls = [serve(crew, environment, sabotage) for environment in case.environments]
        for number, url in enumerate(urls):
            crew.start_python_worker(url, f"--slots={SLOTS}", name=f"snake-{number}")
        workers = [
            fleet.start(
                *(f"--concurrency={SLOTS}", f"--resources={RESOURCES[number]}"),
                settings=SETTINGS,
                sabotage=sabotage,
                env={"ISOLATION": case.environments[number // 2 % len(case.environments)]},
                wait=False,
            )
            for number in range(WORKERS)
        ]
        fleet.wait_until_started(*workers)
        answers = call_directly(fleet, urls, crew.token, load, began)
        wait_until_all_ended(60 + load.jobs * load.longest_sec, fleet)
        for worker in workers:
            worker.terminate()
        verdict.broken += [f"{case}: {worker.output}" for worker in workers if worker.wait_for_end() != 0]
        printed = [(process.log_path.name, process.output) for process in [*crew.programs, *workers]]
    verdict.note(**{f"{case.way}_{case.level}_repeated": sum(text.count(NOT_SERIALIZED) for _, text in printed)})
    verdict.broken += [f"{name}: {line}" for name, text in printed for line in complaints(text)]
    wrong = [answer for answer in answers if not isinstance(answer, dict) or "result" not in answer]
    verdict.require(not wrong, f"{case}: direct calls answered {wrong}")
    judge(verdict, fleet, case, began, load)
    ended = Counter(Job.objects.values_list("status", flat=True))
    verdict.require(ended == {Status.COMPLETED: done_before + load.jobs}, f"{case}: the jobs ended as {dict(ended)}")
    verdict.broken += find_refusals(fleet)


def submit(chance: random.Random, load: Load) -> None:
    """A third of them remote."""
    for number in range(load.jobs):
        params = {"number": number, "seconds": chance.uniform(load.longest_sec / 3, load.longest_sec)}
        if number % 3 == 0:
            remote.submit({"addon_id": ADDON, "job_type": "remote.work", "payload": params}, actor=PYTHON)
        else:
            job_services.enqueue("sample.work", params, resource=chance.choice(RESOURCES))


@contextmanager
def asked_of_the_database(case: Case) -> Iterator[None]:
    """Only connections that are made meanwhile have this default."""
    if not case.is_default:
        yield
        return
    set_default(f"SET default_transaction_isolation = '{case.level}'")
    try:
        yield
    finally:
        set_default("RESET default_transaction_isolation")


def set_default(change: str) -> None:
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} {change}")


def serve(crew: RemoteWorkers, environment: str, sabotage: str) -> str:
    before = crew.fleet.env
    crew.fleet.env = {**before, "ISOLATION": environment}
    try:
        return crew.start_server(settings=SETTINGS, sabotage=sabotage)
    finally:
        crew.fleet.env = before


def call_directly(fleet: Fleet, urls: Sequence[str], token: str, load: Load, began: float) -> list[Any]:
    """Calls beside the queue, as many at once as there are web processes. Returns their answers."""
    wait_until(lambda: any(call.start > began for call in fleet.ledger.list_calls()), what=fleet.logs)
    answers: list[Any] = []
    while len(answers) < load.direct:
        params = [{"number": DIRECT_NUMBER + len(answers) + n, "seconds": load.longest_sec} for n in range(len(urls))]
        pairs = zip(urls, params, strict=True)
        under_way = [DirectCall(f"{url}/direct/sample.work", token, given) for url, given in pairs]
        answers += [call.wait_for_response() for call in under_way]
    return answers


def judge(verdict: SuiteReport, fleet: Fleet, case: Case, began: float, load: Load) -> None:
    ran = [call for call in fleet.ledger.list_calls() if call.start > began]
    peak = count_most_at_once(ran)
    verdict.note(**{f"{case.way}_{case.level}": f"{peak}/{LIMIT}"})
    verdict.require(peak <= LIMIT, f"{case}: {peak} ran at once, {LIMIT} are allowed")
    verdict.require(peak >= LIMIT, f"{case}: the limit was never reached")
    calls = Counter(call.job for call in ran if call.facts["number"] < DIRECT_NUMBER)
    verdict.require(len(calls) == load.jobs, f"{case}: {len(calls)} of {load.jobs} jobs ran")
    verdict.broken += [f"{case}: job {job} ran {times} times" for job, times in calls.items() if times > 1]
    called = sum(call.facts["number"] >= DIRECT_NUMBER for call in ran)
    verdict.require(called >= load.direct, f"{case}: {called} of {load.direct} direct calls ran")


def complaints(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if "Traceback" in line or "deadlock" in line]
