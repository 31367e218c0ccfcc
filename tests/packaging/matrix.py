"""The built wheel on every Django and Python that we promise: `make matrix`, one cell at a time.

Each cell is an empty environment in which the five-minute start is followed, a foreign site is told its whole story on
SQLite and on PostgreSQL (see `tests.packaging.host_site`), and our tests of the `django.tasks` backend run against the
wheel.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests import postgres
from tests.packaging import host_site, start_guide
from tests.packaging.processes import run

CHECKOUT = Path(__file__).resolve().parents[2]
DJANGOS, PYTHONS = ("5.2", "6.0", "6.1"), ("3.11", "3.12", "3.13")
SUITE = ("tests/contrib/test_tasks.py", "tests/contrib/test_task_signals.py")
SUITE_NEEDS = ("pytest", "pytest-django", "pytest-timeout")


def cells() -> list[tuple[str, str]]:
    """Django 6 needs Python 3.12."""
    return [(django, python) for django in DJANGOS for python in PYTHONS if django < "6" or python > "3.11"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--django", choices=DJANGOS, help="only this one")
    parser.add_argument("--python", choices=PYTHONS, help="only this one")
    given = parser.parse_args()
    wanted = [c for c in cells() if given.django in (None, c[0]) and given.python in (None, c[1])]
    with tempfile.TemporaryDirectory(prefix="jobscheduler-matrix-") as home, postgres.server() as server:
        wheel = build(Path(home))
        failed = [cell for cell in wanted if not passes(*cell, wheel, Path(home), server)]
    print(f"{len(wanted) - len(failed)} of {len(wanted)} cells passed")
    return 1 if failed else 0


def passes(django: str, python: str, wheel: Path, home: Path, server: str) -> bool:
    interpreter, began = interpreter_of(python), time.monotonic()
    if interpreter is None:
        print(f"Django {django}  Python {python}  FAILED: there is no python{python} here")
        return False
    place = home / f"{django}-{python}"
    place.mkdir()
    try:
        proved = prove(django, interpreter, wheel, place, server)
    except AssertionError as error:
        print(f"Django {django}  Python {python}  FAILED: {error}", flush=True)
        return False
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"Django {django}  Python {python}  passed in {time.monotonic() - began:.0f} s: {proved}", flush=True)
    return True


def prove(django: str, interpreter: str, wheel: Path, place: Path, server: str) -> str:
    run([interpreter, "-m", "venv", place / "venv"])
    python = place / "venv" / "bin" / "python"
    env = environment(place, django, wheel)
    page = start_guide.follow(make_folder(place / "start"), env)
    assert start_guide.is_completed(page, "shop.greet"), page
    install(python, env, f"{wheel}[tasks,postgres]")
    standard = ""
    for name, database in databases(place, server).items():
        manage = host_site.manager(python, host_site.settle(place / name), database)
        standard = host_site.tell(manage, wheel_home=place)
    return f"start, SQLite, PostgreSQL, {standard}, {suite(python, env, wheel, place, server)}"


def suite(python: Path, env: dict[str, str], wheel: Path, place: Path, server: str) -> str:
    """Our tests of the backend, beside the wheel instead of its sources. What pytest said last."""
    install(python, env, f"{wheel}[standalone,tasks,postgres]", *SUITE_NEEDS)
    home = make_folder(place / "suite")
    shutil.copytree(CHECKOUT / "tests", home / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "manage.py"):
        shutil.copy(CHECKOUT / name, home)
    summaries = [
        run([python, "-m", "pytest", "-q", *SUITE], cwd=home, env={**env, **at}).splitlines()[-1]
        for at in ({}, {"DATABASE_URL": server})
    ]
    return ", ".join(summaries)


def databases(place: Path, server: str) -> dict[str, dict[str, Any]]:
    """One on each engine, with room for a second one."""
    at = urlsplit(server)
    name = "site_" + place.name.replace(".", "").replace("-", "_")
    with psycopg.connect(server, autocommit=True) as connection:
        for item in (name, f"{name}_queue"):
            connection.execute(f"CREATE DATABASE {item}")  # type: ignore[call-overload] — a name cannot be a parameter
    account = {"USER": at.username, "PASSWORD": at.password, "HOST": at.hostname, "PORT": at.port}
    postgresql = {"ENGINE": "django.db.backends.postgresql", "NAME": name, **account}
    return {"sqlite": host_site.sqlite(place / "site.sqlite3"), "postgresql": postgresql}


def environment(place: Path, django: str, wheel: Path) -> dict[str, str]:
    """That of a person who knows nothing of us; `pip` finds this Django, and the wheel where ours is published."""
    constraints = place / "constraints.txt"
    constraints.write_text(f"Django=={django}.*\ndjango-jobscheduler @ {wheel.as_uri()}\n")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(host_site.OURS)}
    path = os.pathsep.join([str(place / "venv" / "bin"), inherited["PATH"]])
    return {**inherited, "PATH": path, "PIP_CONSTRAINT": str(constraints), "PIP_QUIET": "1"}


def install(python: Path, env: dict[str, str], *wanted: str) -> None:
    run([python, "-m", "pip", "install", *wanted], env=env)


def make_folder(place: Path) -> Path:
    place.mkdir()
    return place


def build(home: Path) -> Path:
    source = home / "source"
    for name in ("jobs", "schedules", "webhooks", "jobscheduler"):
        shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", home / "dist", source])
    return next((home / "dist").glob("*.whl"))


def interpreter_of(version: str) -> str | None:
    """One that runs: what pyenv puts on the path does so only where that version is chosen, so its homes come next."""
    kept = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for found in [shutil.which(f"python{version}"), *map(str, reversed(kept))]:
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


if __name__ == "__main__":
    sys.exit(main())
