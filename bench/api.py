"""Whether the API answers a million jobs as fast as ten thousand: `python -m bench.api`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import Calibration, Ceiling, Rates, interleaved, per_second, ratio, table
from bench.sizes import scaled

TITLE = "API: answers a second to one caller, at 10 k jobs and at 1 M, a tenth of them live"
ROUNDS = 5
FEW, MANY = 10_000, 1_000_000
GETS = {
    "jobs": "/api/jobs",
    "jobs, QUEUED": "/api/jobs?status=QUEUED",
    "jobs, FAILED": "/api/jobs?status=FAILED",
    "jobs, of a type": "/api/jobs?job_type=crowd.mail",
    "jobs, of a target": "/api/jobs?target=target%2010",
    "jobs, of a tenant": "/api/jobs?tenant=other",
    "jobs, tagged": "/api/jobs?tag=rare",
    "jobs, in queue order": "/api/jobs?order=queue",
    "a job": "/api/jobs/{job_id}",
    "its events": "/api/jobs/{job_id}/events",
    "its logs": "/api/jobs/{job_id}/logs",
    "runs": "/api/job-runs",
    "runs, FAILED": "/api/job-runs?status=FAILED",
    "a run": "/api/job-runs/{job_id}",
    "targets": "/api/targets",
    "a target": "/api/targets/target%2010",
    "templates": "/api/job-templates",
    "job types": "/api/job-types",
    "workers": "/api/workers",
    "limits": "/api/limits",
    "stats": "/api/stats",
    "metrics": "/metrics",
}
COUNTED = ("stats", "metrics")
ANEW = ", counted anew"  # what it costs when nobody has asked for a while; with that, no bar
LONG_SEC, SHORT_SEC = 2.0, 0.3
BAR = 1.5


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Each size has a database of its own, so that they can be measured in turn."""
    measures: dict[str, Callable[[], float]] = {}
    for size in (FEW, MANY):
        database = _fill(scaled(size, least=1000))
        for name in GETS:
            measures[f"{name} | {size}"] = partial(
                _rate, database, GETS[name], LONG_SEC if name in COUNTED else SHORT_SEC
            )
        for name in COUNTED:
            measures[f"{name}{ANEW} | {size}"] = partial(_rate, database, GETS[name], LONG_SEC, anew=True)
    return interleaved(rounds or ROUNDS, _side_by_side(measures))


def _side_by_side(measures: dict[str, Callable[[], float]]) -> dict[str, Callable[[], float]]:
    """Both sizes of one path, one right after the other."""
    names = sorted({name.partition(" | ")[0] for name in measures})
    return {each: measures[each] for name in names for each in (f"{name} | {FEW}", f"{name} | {MANY}")}


class Filled:
    """A database, its name for Django, and what its paths name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, str] = {}
        self.headers: dict[str, str] = {}


def _fill(jobs: int) -> Filled:
    from django.core.management import call_command

    from jobs import tokens
    from tests.api.crowd import Crowd
    from tests.factories import JobTemplateFactory, WorkerFactory

    filled = Filled(_create(f"bench_api_{jobs}"))
    with _on(filled.name) as connection:
        call_command("migrate", verbosity=0)
        crowd = Crowd(connection, jobs)
        crowd.fill()
        JobTemplateFactory.create_batch(100)
        WorkerFactory.create_batch(5)
        filled.values = {"job_id": crowd.id_of(jobs // 2)}
        filled.headers = {"Authorization": f"Bearer {tokens.create('bench', tenant=None)[1]}"}
    return filled


def _rate(filled: Filled, path: str, seconds: float, *, anew: bool = False) -> float:
    """Answers a second, through all of Django but the socket."""
    from django.test import Client

    from jobs import census

    with _on(filled.name):
        census.forget()
        ask = partial(Client(SERVER_NAME="localhost").get, path.format_map(filled.values), headers=filled.headers)
        if ask().status_code != 200:
            raise RuntimeError(f"{path} is not answered")
        began, answers = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            if anew:
                census.forget()
            ask()
            answers += 1
        return answers / (time.perf_counter() - began)


def _create(name: str) -> str:
    from django.db import connection

    if connection.vendor == "sqlite":
        return str(Path(connection.settings_dict["NAME"]).with_name(f"{name}.sqlite3"))
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name}")
    return name


@contextmanager
def _on(database: str) -> Iterator[Any]:
    """Django's connection, led to another database for a while."""
    from django.db import connection

    before = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = database
    try:
        yield connection
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "answer", "at 10 k", "at 1 M", "10 k ÷ 1 M")
    rows = [
        (database, name, per_second(rates[f"{name} | {FEW}"]), per_second(rates[f"{name} | {MANY}"]), f"{slower:.2f}")
        for database, rates in found.items()
        for name, slower in _ratios(rates).items()
    ]
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Ceiling]:
    return [
        Ceiling(f"{name}, 10 k ÷ 1 M, {database}", slower, BAR)
        for database, rates in found.items()
        for name, slower in _ratios(rates).items()
        if not name.endswith(ANEW)
    ]


def _ratios(rates: Rates) -> dict[str, float]:
    """How many times as long an answer takes at 1 M jobs."""
    names = dict.fromkeys(name.partition(" | ")[0] for name in rates)
    return {name: ratio(rates, f"{name} | {FEW}", f"{name} | {MANY}") for name in names}


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["api", *sys.argv[1:]]))
