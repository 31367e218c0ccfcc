"""The databases of the benchmarks, and a new process for each part: Django reads its settings once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.measure import Calibration, Rates
from tests.postgres import server

CHECKOUT = Path(__file__).resolve().parent.parent
CALIBRATION = "BENCH_CALIBRATION_URL"


@contextmanager
def start_databases() -> Iterator[dict[str, str]]:
    """Yield URLs by name: a new PostgreSQL server with its default durability, and a SQLite file."""
    with server(settings=()) as postgres, tempfile.TemporaryDirectory(prefix="jobscheduler-bench-") as home:
        os.environ[CALIBRATION] = postgres
        yield {"postgresql": postgres, "sqlite": f"sqlite:///{home}/db.sqlite3"}


@contextmanager
def use_database(database: str) -> Iterator[Any]:
    """Yield Django's connection, connected to another database."""
    from django.db import connection

    original = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = database
    try:
        yield connection
    finally:
        connection.close()
        connection.settings_dict["NAME"] = original


def measure_part(module: str, url: str, rounds: int | None) -> Rates:
    """Return the rates of one part on one database, measured in a new process."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "bench.settings", "DATABASE_URL": url}
    plan = json.dumps({"module": module, "rounds": rounds})
    command = [sys.executable, "-m", "bench.databases", plan]
    done = subprocess.run(command, env=environment, cwd=CHECKOUT, stdout=subprocess.PIPE, check=True)
    rates: Rates = json.loads(done.stdout)
    return rates


def _run_part(plan: dict[str, Any]) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    calibration = Calibration(os.environ[CALIBRATION])
    json.dump(import_module(plan["module"]).measure(calibration, plan["rounds"]), sys.stdout)
    calibration.close()


if __name__ == "__main__":
    _run_part(json.loads(sys.argv[1]))
