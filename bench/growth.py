"""Speed of GET requests with ten thousand jobs and with a million, a tenth of them live."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.databases import use_database
from bench.measure import Ceiling, Rates, format_rate, format_table, measure_interleaved, median_ratio
from bench.sizes import scale_size

ROUNDS = 5
SMALL, LARGE = 10_000, 1_000_000
UNCACHED = ", counted anew"  # the cost of a request after a pause, when no count is cached; without a bar
LONG_SEC, SHORT_SEC = 2.0, 0.3  # of paths that count, and of others
BAR = 1.5
MOST_STATEMENTS = 30  # of one response


@dataclass
class FilledDatabase:
    """A database by its name in Django's settings, the values for its paths, and a client."""

    name: str
    values: dict[str, str] = field(default_factory=dict)
    client: Any = None


@dataclass(frozen=True)
class Workload:
    """Paths by name, the names of those that count jobs (and cache the counts), and a factory of clients."""

    paths: Mapping[str, str]
    counted: tuple[str, ...]
    create_client: Callable[[], Any]


def measure(workload: Workload, rounds: int | None) -> Rates:
    """Return the rates of each path. Each size has its own database, so that the two are measured in turn."""
    measures: dict[str, Callable[[], float]] = {}
    for size in (SMALL, LARGE):
        database = _fill_database(scale_size(size, minimum=1000), workload.create_client)
        for name, path in workload.paths.items():
            seconds = LONG_SEC if name in workload.counted else SHORT_SEC
            measures[f"{name} | {size}"] = partial(_measure_path, database, path, seconds)
        for name in workload.counted:
            measures[f"{name}{UNCACHED} | {size}"] = partial(
                _measure_path, database, workload.paths[name], LONG_SEC, uncached=True
            )
    return measure_interleaved(rounds or ROUNDS, _pair_sizes(measures))


def _pair_sizes(measures: dict[str, Callable[[], float]]) -> dict[str, Callable[[], float]]:
    """Return the measures in an order in which both sizes of a path follow one another."""
    names = sorted({name.partition(" | ")[0] for name in measures})
    return {key: measures[key] for name in names for key in (f"{name} | {SMALL}", f"{name} | {LARGE}")}


def _fill_database(jobs: int, create_client: Callable[[], Any]) -> FilledDatabase:
    from django.core.management import call_command

    from tests.factories import JobTemplateFactory, WorkerFactory
    from tests.query_plans.large_tables import LargeTables

    filled = FilledDatabase(_create_database(f"bench_growth_{jobs}"))
    with use_database(filled.name) as connection:
        call_command("migrate", verbosity=0)
        tables = LargeTables(connection, jobs)
        tables.fill()
        JobTemplateFactory.create_batch(100)
        WorkerFactory.create_batch(5)
        filled.values = {"job_id": tables.id_of(jobs // 2), "waiting_id": tables.id_of(jobs - jobs // 20)}
        filled.client = create_client()
    return filled


def _measure_path(filled: FilledDatabase, path: str, seconds: float, *, uncached: bool = False) -> float:
    """Return requests per second, through all of Django except the socket."""
    from django.test.utils import CaptureQueriesContext

    from jobs.stats.cache import RateLimitedCache

    with use_database(filled.name) as connection:
        RateLimitedCache.clear_all()
        send = partial(filled.client.get, path.format_map(filled.values))
        if send().status_code != 200:
            raise RuntimeError(f"{path} did not return 200")
        RateLimitedCache.clear_all()
        with CaptureQueriesContext(connection) as statements:
            send()
        if len(statements) > MOST_STATEMENTS:
            raise RuntimeError(f"{path} took {len(statements)} statements")
        began, responses = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            if uncached:
                RateLimitedCache.clear_all()
            send()
            responses += 1
        return responses / (time.perf_counter() - began)


def _create_database(name: str) -> str:
    from django.db import connection

    if connection.vendor == "sqlite":
        return str(Path(connection.settings_dict["NAME"]).with_name(f"{name}.sqlite3"))
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name}")
    return name


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "answer", "at 10 k", "at 1 M", "10 k ÷ 1 M")
    rows = [
        (
            database,
            name,
            format_rate(rates[f"{name} | {SMALL}"]),
            format_rate(rates[f"{name} | {LARGE}"]),
            f"{slower:.2f}",
        )
        for database, rates in results.items()
        for name, slower in _size_ratios(rates).items()
    ]
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Ceiling]:
    return [
        Ceiling(f"{name}, 10 k ÷ 1 M, {database}", slower, BAR)
        for database, rates in results.items()
        for name, slower in _size_ratios(rates).items()
        if not name.endswith(UNCACHED)
    ]


def _size_ratios(rates: Rates) -> dict[str, float]:
    """Return how many times as long a response takes at 1 M jobs."""
    names = dict.fromkeys(name.partition(" | ")[0] for name in rates)
    return {name: median_ratio(rates, f"{name} | {SMALL}", f"{name} | {LARGE}") for name in names}
