"""The databases that are measured, and a fresh process on each: Django reads its settings once."""

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
def databases() -> Iterator[dict[str, str]]:
    """URLs by name: a PostgreSQL of our own with the durability it is delivered with, and a SQLite file."""
    with server(settings=()) as postgres, tempfile.TemporaryDirectory(prefix="jobscheduler-bench-") as home:
        os.environ[CALIBRATION] = postgres
        yield {"postgresql": postgres, "sqlite": f"sqlite:///{home}/db.sqlite3"}


@contextmanager
def on(database: str) -> Iterator[Any]:
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


def measure(module: str, url: str, rounds: int | None) -> Rates:
    """Run one part on one database."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "bench.settings", "DATABASE_URL": url}
    plan = json.dumps({"module": module, "rounds": rounds})
    command = [sys.executable, "-m", "bench.databases", plan]
    done = subprocess.run(command, env=environment, cwd=CHECKOUT, stdout=subprocess.PIPE, check=True)
    found: Rates = json.loads(done.stdout)
    return found


def _in_fresh_process(plan: dict[str, Any]) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    calibration = Calibration(os.environ[CALIBRATION])
    json.dump(import_module(plan["module"]).measure(calibration, plan["rounds"]), sys.stdout)
    calibration.close()


if __name__ == "__main__":
    _in_fresh_process(json.loads(sys.argv[1]))
