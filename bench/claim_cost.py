"""Whether a claim costs the same whatever waits in the queue: `python -m bench.claim_cost`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench import bulk_insert
from bench.databases import on
from bench.jobs import NOOP
from bench.measure import Bar, Calibration, Rates, interleaved, per_second, ratio, spread, table
from bench.sizes import scaled

TITLE = "Claim: jobs claimed a second by one claimer with 20 free slots, by what else is in the queue"
DATABASES = ("postgresql",)
ROUNDS = 7
SLOTS = range(20)
BATCHES, WARM = 50, 10
SHALLOW = 1_000  # enough for one round; filled up again before the next
DEEP = 1_000_000
LANES, JOBS_A_LANE = 100_000, 10
BUSY = "bench.busy"
EMPTY = "bench_claim_empty"
LEASE_SEC = 60.0

AHEAD = {"priority": "90", "base_priority": "90"}  # before all others, in the order of dispatch


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Each queue has a database of its own, so that they can be measured in turn."""
    measures: dict[str, Callable[[], float]] = {"cal": calibration.rate}
    _create(EMPTY)
    with on(EMPTY):
        _migrate()
    for number, (name, prepare) in enumerate(QUEUES.items()):
        database = f"bench_claim_{number}"
        _create(database, template=EMPTY)
        with on(database) as connection:
            prepare(connection)
            _execute(connection, "VACUUM ANALYZE jobscheduler_job")
        measures[name] = partial(_rate, database, name)
    return interleaved(rounds or ROUNDS, measures)


def _deep(connection: Any) -> None:
    bulk_insert.insert(connection, NOOP, scaled(DEEP))


def _blocked_lanes(connection: Any) -> None:
    """Every lane is held by a job that failed for good; ten more wait behind it."""
    lanes = scaled(LANES)
    held = {"status": "'FAILED'", "gate": "0", "holds_lane": "true", "dispatched_at": "statement_timestamp()"}
    bulk_insert.insert(connection, NOOP, lanes, **bulk_insert.in_lanes(lanes, **held))
    bulk_insert.insert(connection, NOOP, lanes * JOBS_A_LANE, **bulk_insert.in_lanes(lanes, gate="2"), **AHEAD)


def _full_type(connection: Any) -> None:
    """A limit that one running job fills."""
    from jobs.models import ConcurrencyLimit

    ConcurrencyLimit.objects.create(scope="job_type", key=BUSY, max=1)
    bulk_insert.insert(connection, BUSY, 1, **bulk_insert.RUNNING)


def _full_type_ahead(connection: Any) -> None:
    _full_type(connection)
    bulk_insert.insert(connection, BUSY, scaled(DEEP), **AHEAD)


QUEUES: dict[str, Callable[[Any], None]] = {
    "few": lambda connection: None,
    "1 M queued": _deep,
    "100 k blocked lanes × 10 ahead": _blocked_lanes,
    "a type at its limit": _full_type,
    "a type at its limit, 1 M of it ahead": _full_type_ahead,
}


def _rate(database: str, name: str) -> float:
    """Only the claims are timed; what was claimed is finished between them."""
    from jobs.engine.claim import Claimer, Serves

    with on(database) as connection:
        _fill_up(connection)
        claimer = Claimer("bench", Serves((NOOP, BUSY)), "bench@bench")
        for _ in range(WARM):
            _claimed(claimer)
        taken, seconds = zip(*(_claimed(claimer) for _ in range(BATCHES)), strict=True)
    if not all(taken):
        raise RuntimeError(f"a claim found nothing: {name}")
    return sum(taken) / sum(seconds)


def _claimed(claimer: Any) -> tuple[int, float]:
    from jobs.actors import worker
    from jobs.engine.finish import End, finish
    from jobs.outcomes import Completed

    began = time.perf_counter()
    claims = claimer.claim(SLOTS, lease_sec=LEASE_SEC)
    took = time.perf_counter() - began
    finish([End(each.id, each.lease_token, Completed()) for each in claims], actor=worker("bench"))
    return len(claims), took


def _fill_up(connection: Any) -> None:
    from jobs.models import Job

    missing = SHALLOW - Job.objects.ready().filter(job_type=NOOP)[:SHALLOW].count()
    if missing > 0:
        bulk_insert.insert(connection, NOOP, missing)


def _create(database: str, template: str = "template1") -> None:
    from django.db import connection

    _execute(connection, f"DROP DATABASE IF EXISTS {database}")
    _execute(connection, f"CREATE DATABASE {database} TEMPLATE {template}")


def _migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "queue", "jobs a second", "of all rounds", "÷ cal")
    rows = [
        (database, name, per_second(values), spread(values), f"{ratio(rates, name, 'cal'):.2f}")
        for database, rates in found.items()
        for name, values in rates.items()
    ]
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Bar]:
    few, deep, lanes, limited, ahead = QUEUES
    pairs = [(deep, few), (lanes, few), (ahead, limited)]
    return [
        Bar(f"claim rate, {name} ÷ {to}", ratio(rates, name, to), 0.8, 0.95)
        for rates in found.values()
        for name, to in pairs
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["claim_cost", *sys.argv[1:]]))
