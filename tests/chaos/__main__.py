"""The long forms: `python -m tests.chaos [SUITE …] [--database sqlite|postgres] [--short]`.

Every suite runs in a process of its own, on a database of its own, says one verdict line, and makes the exit code 1
if it saw a promise broken. SEED repeats the choices of a run.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.suites import DATABASES, SUITES

TOO_LONG_SEC = 3600


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    if options.here:
        return one(options.here, options.database[0], short=options.short)
    broken = 0
    for name in options.suites or SUITES:
        for database in options.database or DATABASES:
            if database in SUITES[name].databases:
                broken += apart(name, database, short=options.short)
    print(f"chaos: {broken} suites broken" if broken else "chaos: everything held", flush=True)
    return 1 if broken else 0


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(SUITES)}; default all")
    parser.add_argument("--database", action="append", choices=DATABASES)
    parser.add_argument("--short", action="store_true", help="the size that the ordinary tests use")
    parser.add_argument("--here", choices=SUITES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    return options


def apart(name: str, database: str, *, short: bool) -> bool:
    """Run a suite in its own process; whether something broke."""
    command = [sys.executable, "-m", "tests.chaos", "--here", name, "--database", database]
    try:
        ended = subprocess.run([*command, *(["--short"] if short else [])], check=False, timeout=TOO_LONG_SEC)
    except subprocess.TimeoutExpired:
        print(f"{name} on {database}: BROKEN: did not end in {TOO_LONG_SEC} s", flush=True)
        return True
    return ended.returncode != 0


def one(name: str, database: str, *, short: bool) -> int:
    seed = os.environ.get("SEED") or secrets.token_hex(4)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jobscheduler-chaos-") as home, database_of(database, home) as server:
        verdict = _set_up_and_run(name, server, Path(home), seed, short)
    took = time.monotonic() - began
    outcome = verdict if not SUITES[name].must_break else verdict.noticed
    print(f"{name} on {database}: {outcome} [SEED={seed}, {took:.0f} s]", flush=True)
    return 1 if bool(verdict.broken) != SUITES[name].must_break else 0


@contextmanager
def database_of(kind: str, home: str) -> Iterator[Any]:
    """Settings read DATABASE_URL once: it must be there before Django is."""
    os.environ.update(DJANGO_SETTINGS_MODULE="tests.settings", LOG_LEVEL="WARNING")
    if kind == "sqlite":
        os.environ["DATABASE_URL"] = f"sqlite:///{home}/db.sqlite3"
        yield None
        return
    from tests.chaos.crashable_postgres import server

    with server() as made:
        os.environ["DATABASE_URL"] = made.url
        yield made


def _set_up_and_run(name: str, server: Any, home: Path, seed: str, short: bool) -> Any:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    return SUITES[name].run(server, home, seed, short)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
