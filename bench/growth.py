"""GETs answered with ten thousand jobs and with a million, a tenth of them live: as fast with all of them?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.databases import on
from bench.measure import Ceiling, Rates, interleaved, per_second, ratio, table
from bench.sizes import scaled

ROUNDS = 5
FEW, MANY = 10_000, 1_000_000
ANEW = ", counted anew"  # what it costs when nobody has asked for a while; with that, no bar
LONG_SEC, SHORT_SEC = 2.0, 0.3
BAR = 1.5


@dataclass
class Filled:
    """A database, its name for Django, what its paths name, and who asks."""

    name: str
    values: dict[str, str] = field(default_factory=dict)
    client: Any = None


@dataclass(frozen=True)
class Asked:
    """Names and paths of the answers; those of them that count (and may be asked to count anew); who may ask."""

    paths: Mapping[str, str]
    counted: tuple[str, ...]
    visitor: Callable[[], Any]


def measure(asked: Asked, rounds: int | None) -> Rates:
    """Each size has a database of its own, so that they can be measured in turn."""
    measures: dict[str, Callable[[], float]] = {}
    for size in (FEW, MANY):
        database = _fill(scaled(size, least=1000), asked.visitor)
        for name, path in asked.paths.items():
            seconds = LONG_SEC if name in asked.counted else SHORT_SEC
            measures[f"{name} | {size}"] = partial(_rate, database, path, seconds)
        for name in asked.counted:
            measures[f"{name}{ANEW} | {size}"] = partial(_rate, database, asked.paths[name], LONG_SEC, anew=True)
    return interleaved(rounds or ROUNDS, _side_by_side(measures))


def _side_by_side(measures: dict[str, Callable[[], float]]) -> dict[str, Callable[[], float]]:
    """Both sizes of one path, one right after the other."""
    names = sorted({name.partition(" | ")[0] for name in measures})
    return {each: measures[each] for name in names for each in (f"{name} | {FEW}", f"{name} | {MANY}")}


def _fill(jobs: int, visitor: Callable[[], Any]) -> Filled:
    from django.core.management import call_command

    from tests.factories import JobTemplateFactory, WorkerFactory
    from tests.query_plans.large_tables import Crowd

    filled = Filled(_create(f"bench_growth_{jobs}"))
    with on(filled.name) as connection:
        call_command("migrate", verbosity=0)
        crowd = Crowd(connection, jobs)
        crowd.fill()
        JobTemplateFactory.create_batch(100)
        WorkerFactory.create_batch(5)
        filled.values = {"job_id": crowd.id_of(jobs // 2), "waiting_id": crowd.id_of(jobs - jobs // 20)}
        filled.client = visitor()
    return filled


def _rate(filled: Filled, path: str, seconds: float, *, anew: bool = False) -> float:
    """Answers a second, through all of Django but the socket."""
    from jobs.stats import live_counts

    with on(filled.name):
        live_counts.clear_cache()
        ask = partial(filled.client.get, path.format_map(filled.values))
        if ask().status_code != 200:
            raise RuntimeError(f"{path} is not answered")
        began, answers = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            if anew:
                live_counts.clear_cache()
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
