"""The peers at the same work: no-op jobs on the same PostgreSQL, two processes, set up as their manuals say."""

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

from bench.measure import CAL, Bar, Calibration, Rates, calibrated, per_second, ratio, spread, table
from bench.peers.venvs import python_of, version_of
from bench.processes import CHECKOUT, Processes, require_sound, started
from bench.sizes import scaled

TITLE = "Peers: drain of no-op jobs, two processes each"
DATABASES = ("postgresql",)
PEERS = ("procrastinate", "django_tasks_db", "django_q2", "pgqueuer", "celery")
OURS = "this scheduler"
ROUNDS = 1
PREPARE_SEC = 300.0
LOOK_SEC = 0.1
START_SEC = 60.0
SLOWEST = 20  # jobs a second


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Ours among them, in the setup with most slots. A peer that cannot be run here has no figures."""
    from bench.drain import Setup

    measures: dict[str, Callable[[], float]] = {OURS: Setup(2, 100).rate}
    absent: Rates = {}
    for peer in PEERS:
        module = import_module(f"bench.peers.{peer}")
        why = getattr(module, "missing", lambda: None)()
        if why:
            absent[f"{peer}: {why}"] = []
        else:
            measures[version_of(peer)] = _rate_of(peer, module)
    return calibrated(rounds or ROUNDS, calibration.rate, measures) | absent


def _rate_of(peer: str, module: ModuleType) -> Callable[[], float]:
    def rate() -> float:
        jobs = scaled(module.JOBS, least=getattr(module, "LEAST", 300))
        with _server(peer, module) as (url, left):
            environment = _environment(url)
            command = [str(python_of(peer)), "-c", f"from bench.peers.{peer} import prepare; prepare({jobs})"]
            subprocess.run(command, env=environment, cwd=CHECKOUT, stdout=sys.stderr, timeout=PREPARE_SEC, check=True)
            command = [str(python_of(peer)), "-c", f"from bench.peers.{peer} import work; work()"]
            with started([command] * module.WORKERS, environment) as processes:
                return _watch(processes, left, jobs)

    return rate


@contextmanager
def _server(peer: str, module: ModuleType) -> Iterator[tuple[str, Callable[[], int]]]:
    """Where its jobs are kept, and how many of them are left."""
    if hasattr(module, "server"):
        with module.server() as url:
            yield url, lambda: int(module.left(url))
        return
    base = os.environ["DATABASE_URL"]
    with psycopg.connect(base, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS bench_{peer} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE bench_{peer}")
    url = f"{base.rpartition('/')[0]}/bench_{peer}".replace("postgres://", "postgresql://")
    with psycopg.connect(url, autocommit=True) as watcher:
        yield url, lambda: int(watcher.execute(module.LEFT).fetchone()[0])  # type: ignore[index]


def _environment(url: str) -> dict[str, str]:
    """Neither our Django nor our settings."""
    ours = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "VIRTUAL_ENV", "PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in ours} | {"PEER_URL": url}


def _watch(processes: Processes, left: Callable[[], int], jobs: int) -> float:
    """Jobs a second from the last look that saw at most a tenth of them done to the first that saw nine tenths."""
    seconds = START_SEC + jobs / SLOWEST
    began, before = time.monotonic(), 0
    deadline = began + seconds
    while (done := jobs - left()) < jobs * 9 / 10:
        if done <= jobs / 10:
            began, before = time.monotonic(), done
        require_sound(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{done} of {jobs} jobs done in {seconds:g} s: {processes[0].args}")
        time.sleep(LOOK_SEC if jobs > 1000 else LOOK_SEC / 20)
    return (done - before) / (time.monotonic() - began)


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "queue", "jobs a second", "of all rounds", "cal", "÷ cal")
    rows = []
    for database, rates in found.items():
        for name in [name for name in rates if not name.endswith(CAL)]:
            if rates[name]:
                cal = per_second(rates[name + CAL]), f"{ratio(rates, name, name + CAL):.2f}"
                rows.append((database, name, per_second(rates[name]), spread(rates[name]), *cal))
            else:
                rows.append((database, name, "not run", "", "", ""))
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Bar]:
    """Ahead of each of them, in the same run."""
    reached = []
    for rates in found.values():
        for name in [name for name in rates if rates[name] and not name.endswith(CAL) and name != OURS]:
            ahead = ratio(rates, OURS, OURS + CAL) / ratio(rates, name, name + CAL)
            bar = (5 / 13.9, 1) if name.startswith("pgqueuer") else (1, None)  # it keeps no lease, run or event
            reached.append(Bar(f"{OURS} ÷ {name}", ahead, *bar))
    return reached


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["peers", *sys.argv[1:]]))
