"""The built wheel in a foreign site, on every Django and Python that we promise: `make matrix`, one cell at a time.

The site has its own user model, admin path, URL prefix, number format and a second database for the queue.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SITE = Path(__file__).resolve().parent / "house" / "foreign_site"
DJANGOS, PYTHONS = ("5.2", "6.0", "6.1"), ("3.11", "3.12", "3.13")
OPTIONS = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}
PAGES = (
    *("/scheduler/healthz", "/scheduler/readyz", "/scheduler/api/openapi.json", "/scheduler/api/jobs"),
    *("/backoffice/", "/backoffice/jobscheduler_jobs/job/", "/backoffice/jobscheduler_schedules/schedule/"),
)


def cells() -> list[tuple[str, str]]:
    """Django 6 needs Python 3.12."""
    return [(django, python) for django in DJANGOS for python in PYTHONS if django < "6" or python > "3.11"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--django", choices=DJANGOS, help="only this one")
    parser.add_argument("--python", choices=PYTHONS, help="only this one")
    given = parser.parse_args()
    wanted = [c for c in cells() if given.django in (None, c[0]) and given.python in (None, c[1])]
    with tempfile.TemporaryDirectory(prefix="jobscheduler-matrix-") as home:
        wheel = build(Path(home))
        failed = [cell for cell in wanted if not passes(*cell, wheel, Path(home))]
    print(f"{len(wanted) - len(failed)} of {len(wanted)} cells passed")
    return 1 if failed else 0


def passes(django: str, python: str, wheel: Path, home: Path) -> bool:
    interpreter = interpreter_of(python)
    if interpreter is None:
        print(f"Django {django}  Python {python}  FAILED: there is no python{python} here")
        return False
    place = home / f"{django}-{python}"
    try:
        prove(django, interpreter, wheel, place)
    except subprocess.CalledProcessError as error:
        print(f"Django {django}  Python {python}  FAILED: {error.cmd}\n{error.stdout}\n{error.stderr}")
        return False
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"Django {django}  Python {python}  passed", flush=True)
    return True


def prove(django: str, interpreter: str, wheel: Path, place: Path) -> None:
    run(interpreter, "-m", "venv", place / "venv")
    python = place / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[tasks]", f"Django=={django}.*")
    site = shutil.copytree(SITE, place / "site", ignore=shutil.ignore_patterns("__pycache__"))
    env = environment(place)

    def manage(*words: str) -> str:
        return run(python, "-W", "error::DeprecationWarning:jobs", site / "manage.py", *words, env=env, cwd=site)

    manage("makemigrations", "accounts", "shop")
    manage("makemigrations", "--check", "--dry-run")
    manage("migrate", "--verbosity=0")
    manage("migrate", "--verbosity=0", "--database=queue")
    manage("check", "--fail-level=WARNING")
    job = manage("order", "7").strip()
    manage("worker", "--burst")
    seen = json.loads(manage("inspect", job))
    require((seen["status"], seen["receipts"]) == ("COMPLETED", [7]), f"the job ended as {seen}")
    require(seen["code"].startswith(str(place)), f"the code is not the wheel's: {seen['code']}")
    answers = manage("visit", *PAGES)
    require(answers.split() == [word for page in PAGES for word in ("200", page)], answers)
    manage("doctor")


def environment(place: Path) -> dict[str, str]:
    def database(name: str) -> str:
        return json.dumps({"ENGINE": "django.db.backends.sqlite3", "NAME": str(place / name), "OPTIONS": OPTIONS})

    ours = ("DJANGO_", "JOBSCHEDULER_", "PYTHON", "DATABASE_URL")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "SITE_DATABASE": database("site.sqlite3"), "SITE_QUEUE": database("queue.sqlite3")}


def build(home: Path) -> Path:
    source = home / "source"
    for name in ("jobs", "schedules", "webhooks", "jobscheduler"):
        shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(CHECKOUT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", home / "dist", source)
    return next((home / "dist").glob("*.whl"))


def interpreter_of(version: str) -> str | None:
    """One that runs: what pyenv puts on the path does so only where that version is chosen, so its homes come next."""
    kept = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for found in [shutil.which(f"python{version}"), *map(str, reversed(kept))]:
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


def require(holds: bool, told: str) -> None:
    if not holds:
        raise subprocess.CalledProcessError(1, told, "", "")


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    return str(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
