"""Cost of a claim with different queues: `python -m bench.claim_cost`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench import bulk_insert
from bench.databases import use_database
from bench.jobs import NOOP
from bench.measure import (
    Bar,
    Calibration,
    Rates,
    format_range,
    format_rate,
    format_table,
    measure_interleaved,
    median_ratio,
)
from bench.sizes import scale_size

TITLE = "Claim: jobs claimed a second by one claimer with 20 free slots, by what else is in the queue"
DATABASES = ("postgresql",)
ROUNDS = 7
SLOTS = range(20)
CLAIMS, WARM_UP_CLAIMS = 50, 10
SHALLOW = 1_000  # jobs for one round; refilled before the next
DEEP = 1_000_000
TARGETS, JOBS_PER_TARGET = 100_000, 10
BUSY = "bench.busy"
EMPTY = "bench_claim_empty"
LEASE_SEC = 60.0

AHEAD = {"priority": "90", "base_priority": "90"}  # ahead of all others in dispatch order


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the claim rates. Each queue has its own database, so that they are measured in turn."""
    measures: dict[str, Callable[[], float]] = {"cal": calibration.rate}
    _create_database(EMPTY)
    with use_database(EMPTY):
        _migrate()
    for number, (name, prepare) in enumerate(QUEUES.items()):
        database = f"bench_claim_{number}"
        _create_database(database, template=EMPTY)
        with use_database(database) as connection:
            prepare(connection)
            _execute(connection, "VACUUM ANALYZE jobscheduler_job")
        measures[name] = partial(_measure_claims, database, name)
    return measure_interleaved(rounds or ROUNDS, measures)


def _insert_many(connection: Any) -> None:
    bulk_insert.insert_jobs(connection, NOOP, scale_size(DEEP))


def _insert_blocked_targets(connection: Any) -> None:
    """Insert targets that a failed job blocks, with ten jobs behind each."""
    targets = scale_size(TARGETS)
    blocking = {"status": "'FAILED'", "gate": "0", "holds_lane": "true", "dispatched_at": "statement_timestamp()"}
    bulk_insert.insert_jobs(connection, NOOP, targets, **bulk_insert.spread_over_targets(targets, **blocking))
    waiting = bulk_insert.spread_over_targets(targets, gate="2")
    bulk_insert.insert_jobs(connection, NOOP, targets * JOBS_PER_TARGET, **waiting, **AHEAD)


def _fill_limit(connection: Any) -> None:
    """Create a limit that one running job fills."""
    from jobs.models import ConcurrencyLimit

    ConcurrencyLimit.objects.create(scope="job_type", key=BUSY, max=1)
    bulk_insert.insert_jobs(connection, BUSY, 1, **bulk_insert.RUNNING)


def _insert_limited_ahead(connection: Any) -> None:
    _fill_limit(connection)
    bulk_insert.insert_jobs(connection, BUSY, scale_size(DEEP), **AHEAD)


QUEUES: dict[str, Callable[[Any], None]] = {
    "few": lambda connection: None,
    "1 M queued": _insert_many,
    "100 k blocked lanes × 10 ahead": _insert_blocked_targets,
    "a type at its limit": _fill_limit,
    "a type at its limit, 1 M of it ahead": _insert_limited_ahead,
}


def _measure_claims(database: str, name: str) -> float:
    """Return jobs claimed per second. Claimed jobs are finished between the claims, outside of the measured time."""
    from jobs.engine.claim import Claimer, ServedJobs

    with use_database(database) as connection:
        _refill(connection)
        claimer = Claimer("bench", ServedJobs((NOOP, BUSY)), "bench@bench")
        for _ in range(WARM_UP_CLAIMS):
            _claim_and_finish(claimer)
        claimed, seconds = zip(*(_claim_and_finish(claimer) for _ in range(CLAIMS)), strict=True)
    if not all(claimed):
        raise RuntimeError(f"a claim returned no job: {name}")
    return sum(claimed) / sum(seconds)


def _claim_and_finish(claimer: Any) -> tuple[int, float]:
    from jobs.actors import make_worker_actor
    from jobs.engine.finish import JobResult, finish
    from jobs.outcomes import Completed

    began = time.perf_counter()
    claims = claimer.claim(SLOTS, lease_sec=LEASE_SEC)
    seconds = time.perf_counter() - began
    finish([JobResult(claim.id, claim.lease_token, Completed()) for claim in claims], actor=make_worker_actor("bench"))
    return len(claims), seconds


def _refill(connection: Any) -> None:
    from jobs.models import Job

    missing = SHALLOW - Job.objects.ready().filter(job_type=NOOP)[:SHALLOW].count()
    if missing > 0:
        bulk_insert.insert_jobs(connection, NOOP, missing)


def _create_database(database: str, template: str = "template1") -> None:
    from django.db import connection

    _execute(connection, f"DROP DATABASE IF EXISTS {database}")
    _execute(connection, f"CREATE DATABASE {database} TEMPLATE {template}")


def _migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "queue", "jobs a second", "of all rounds", "÷ cal")
    rows = [
        (database, name, format_rate(values), format_range(values), f"{median_ratio(rates, name, 'cal'):.2f}")
        for database, rates in results.items()
        for name, values in rates.items()
    ]
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Bar]:
    small, many, blocked, limited, ahead = QUEUES
    pairs = [(many, small), (blocked, small), (ahead, limited)]
    return [
        Bar(f"claim rate, {name} ÷ {to}", median_ratio(rates, name, to), 0.8, 0.95)
        for rates in results.values()
        for name, to in pairs
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["claim_cost", *sys.argv[1:]]))
