"""The built wheel, at home in somebody else's site."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.house.processes import run

CHECKOUT = Path(__file__).resolve().parents[2]
FOREIGN_SITE = Path(__file__).parent / "foreign_site"
Manage = Callable[..., str]


@pytest.fixture
def site_database(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, object]]:
    """An empty database for the site, on the engine of this run."""
    if connection.vendor == "sqlite":
        options = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}
        yield {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "site.sqlite3"), "OPTIONS": options}
        return
    name = f"foreign_site_{os.getpid()}"
    credentials = {key: connection.settings_dict[key] for key in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT")}
    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield {**credentials, "NAME": name}
    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def queue_database(tmp_path: Path) -> dict[str, str]:
    """On SQLite the queue has a database of its own, behind a router of the site's."""
    if connection.vendor != "sqlite":
        return {}
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}
    queue = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "queue.sqlite3"), "OPTIONS": options}
    return {"SITE_QUEUE": json.dumps(queue)}


@pytest.fixture
def manage(
    foreign_python: Path, site_database: dict[str, object], queue_database: dict[str, str], tmp_path: Path
) -> Manage:
    site = shutil.copytree(FOREIGN_SITE, tmp_path / "site")
    ours = ("DJANGO_", "JOBSCHEDULER_", "PYTHON", "DATABASE_URL")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {
        **queue_database,
        "SITE_DATABASE": json.dumps(site_database),
        "PYTHONWARNINGS": "error::DeprecationWarning:jobs",
    }
    return lambda *arguments: run([foreign_python, site / "manage.py", *arguments], env=env, cwd=site)


def test_the_wheel_ships_our_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"jobs", "schedules", "webhooks", "jobscheduler"}
    for app in ("jobs", "schedules", "webhooks", "jobscheduler"):
        assert f"{app}/py.typed" in names
    for app in ("jobs", "schedules", "webhooks"):
        assert any(name.startswith(f"{app}/migrations/0001") for name in names)


def test_every_module_of_ours_is_in_the_wheel(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for app in ("jobs", "schedules", "webhooks", "jobscheduler"):
        assert {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / app).rglob("*.py")} <= shipped


def test_the_wheel_names_its_extras_its_plugin_and_all_that_it_imports(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    described = {Path(name).name: packed.read(name).decode() for name in packed.namelist() if ".dist-info/" in name}
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", described["METADATA"], re.MULTILINE))
    assert {"django-q", "otel", "postgres", "tasks"} <= extras
    assert "jobscheduler.pytest_plugin = jobscheduler.pytest_plugin" in described["entry_points.txt"]
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", described["METADATA"], re.MULTILINE)
    assert {"Django", "django-ninja", "pydantic", "cronsim", "psutil", "tzdata", "urllib3"} == set(needed)


def test_every_template_static_and_locale_file_of_an_app_is_in_the_wheel(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for app in ("jobs", "schedules", "webhooks", "jobscheduler"):
        for folder in ("templates", "static", "locale"):
            files = [path for path in (CHECKOUT / app / folder).rglob("*") if path.is_file()]
            assert {str(path.relative_to(CHECKOUT)) for path in files} <= shipped
        assert f"{app}/locale/de/LC_MESSAGES/django.mo" in shipped


def test_a_foreign_site_migrates_checks_and_runs_a_job_of_its_own(
    manage: Manage, foreign_python: Path, queue_database: dict[str, str]
) -> None:
    manage("makemigrations", "accounts", "shop")
    manage("makemigrations", "--check", "--dry-run")
    manage("migrate", "--verbosity=0")
    if queue_database:
        manage("migrate", "--verbosity=0", "--database=queue")
    manage("check", "--fail-level=WARNING")

    job_id = manage("order", "7").strip()
    manage("worker", "--burst")

    seen = json.loads(manage("inspect", job_id))
    assert (seen["status"], seen["receipts"]) == ("COMPLETED", [7])
    assert seen["code"].startswith(str(foreign_python.parent.parent))

    manage("doctor")
    pages = ["/scheduler/healthz", "/scheduler/readyz", "/backoffice/", "/backoffice/jobscheduler_jobs/job/"]
    assert manage("visit", *pages).split() == [word for page in pages for word in ("200", page)]
