"""Other queues at the same work: no-op jobs on the same PostgreSQL, two processes, set up as their manuals say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import psycopg

from bench.measure import (
    CAL,
    Bar,
    Calibration,
    Rates,
    format_range,
    format_rate,
    format_table,
    measure_calibrated,
    median_ratio,
)
from bench.peers.venvs import get_python, get_version
from bench.processes import CHECKOUT, Processes, raise_if_failed, run_processes
from bench.sizes import scale_size

TITLE = "Peers: drain of no-op jobs, two processes each"
DATABASES = ("postgresql",)
PEERS = ("procrastinate", "django_tasks_db", "django_q2", "pgqueuer", "celery")
OURS = "this scheduler"
README_COLUMNS = (OURS, "celery", "django-q2", "procrastinate", "django-tasks")
ROUNDS = 1
PREPARE_SEC = 300.0
POLL_SEC = 0.1
START_SEC = 60.0
MIN_JOBS_PER_SEC = 20


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the rates of the peers and of this scheduler. A peer that cannot run here has no figures."""
    from bench.drain import Setup

    measures: dict[str, Callable[[], float]] = {OURS: Setup(2, 100).rate}
    absent: Rates = {}
    for peer in PEERS:
        module = import_module(f"bench.peers.{peer}")
        missing = getattr(module, "find_missing", lambda: None)()
        if missing:
            absent[f"{peer}: {missing}"] = []
        else:
            measures[get_version(peer)] = _build_measure(peer, module)
    return measure_calibrated(rounds or ROUNDS, calibration.rate, measures) | absent


def _build_measure(peer: str, module: ModuleType) -> Callable[[], float]:
    def rate() -> float:
        jobs = scale_size(module.JOBS, minimum=getattr(module, "MIN_JOBS", 300))
        with _prepare_queue(peer, module) as (url, count_remaining):
            environment = _build_environment(url)
            command = [
                str(get_python(peer)),
                "-c",
                f"from bench.peers.{peer} import enqueue_jobs; enqueue_jobs({jobs})",
            ]
            subprocess.run(command, env=environment, cwd=CHECKOUT, stdout=sys.stderr, timeout=PREPARE_SEC, check=True)
            command = [str(get_python(peer)), "-c", f"from bench.peers.{peer} import run_worker; run_worker()"]
            with run_processes([command] * module.WORKERS, environment) as processes:
                return _measure_drain(processes, count_remaining, jobs)

    return rate


@contextmanager
def _prepare_queue(peer: str, module: ModuleType) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the URL of the queue, and a function that counts the remaining jobs."""
    if hasattr(module, "server"):
        with module.server() as url:
            yield url, lambda: int(module.count_remaining(url))
        return
    base = os.environ["DATABASE_URL"]
    with psycopg.connect(base, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS bench_{peer} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE bench_{peer}")
    url = f"{base.rpartition('/')[0]}/bench_{peer}".replace("postgres://", "postgresql://")
    with psycopg.connect(url, autocommit=True) as watcher:
        yield url, lambda: int(watcher.execute(module.REMAINING_SQL).fetchone()[0])  # type: ignore[index]


def _build_environment(url: str) -> dict[str, str]:
    """Return the environment without the settings of this scheduler."""
    ours = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "VIRTUAL_ENV", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in ours} | {"PEER_URL": url}


def _measure_drain(processes: Processes, count_remaining: Callable[[], int], jobs: int) -> float:
    """Return jobs per second from the last poll with at most a tenth done to the first with nine tenths done."""
    seconds = START_SEC + jobs / MIN_JOBS_PER_SEC
    began, before = time.monotonic(), 0
    deadline = began + seconds
    while (done := jobs - count_remaining()) < jobs * 9 / 10:
        if done <= jobs / 10:
            began, before = time.monotonic(), done
        raise_if_failed(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{done} of {jobs} jobs done in {seconds:g} s: {processes[0].args}")
        time.sleep(POLL_SEC if jobs > 1000 else POLL_SEC / 20)
    return (done - before) / (time.monotonic() - began)


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "queue", "jobs a second", "of all rounds", "cal", "÷ cal")
    rows = []
    for database, rates in results.items():
        for name in [name for name in rates if not name.endswith(CAL)]:
            if rates[name]:
                cal = format_rate(rates[name + CAL]), f"{median_ratio(rates, name, name + CAL):.2f}"
                rows.append((database, name, format_rate(rates[name]), format_range(rates[name]), *cal))
            else:
                rows.append((database, name, "not run", "", "", ""))
    return "\n\n".join([format_table(heads, rows), *map(_format_readme_row, results.values())])


def _format_readme_row(rates: Rates) -> str:
    """Return the row of rates for the table of the README, which has a column for each of these queues."""
    columns = [next((name for name in rates if name.startswith(queue)), "") for queue in README_COLUMNS]
    cells = [format_rate(rates[name]) if rates.get(name) else "not run" for name in columns]
    return f"README: | no-op jobs a second, two processes | {' | '.join(cells)} |"


def bars(results: Mapping[str, Rates]) -> list[Bar]:
    """Return a bar for each peer: this scheduler is at least as fast in the same run."""
    checked = []
    for rates in results.values():
        for name in [name for name in rates if rates[name] and not name.endswith(CAL) and name != OURS]:
            ahead = median_ratio(rates, OURS, OURS + CAL) / median_ratio(rates, name, name + CAL)
            bar = (5 / 13.9, 1) if name.startswith("pgqueuer") else (1, None)  # it writes no lease, run or event
            checked.append(Bar(f"{OURS} ÷ {name}", ahead, *bar))
    return checked


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["peers", *sys.argv[1:]]))
