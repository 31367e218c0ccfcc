"""The built wheel, installed in a host site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.packaging import host_site
from tests.packaging.host_site import Manage
from tests.packaging.processes import run

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site_database(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, object]]:
    """An empty database for the site, on the engine of this run, with room for a second one."""
    if connection.vendor == "sqlite":
        yield host_site.sqlite(tmp_path / "site.sqlite3")
        return
    name = f"foreign_site_{os.getpid()}"
    credentials = {key: connection.settings_dict[key] for key in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT")}
    names = (name, f"{name}_queue")
    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
        for database in names:
            cursor.execute(f"CREATE DATABASE {database}")
    yield {**credentials, "NAME": name}
    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
        for database in names:
            cursor.execute(f"DROP DATABASE {database} WITH (FORCE)")


@pytest.fixture
def manage(foreign_python: Path, site_database: dict[str, object], tmp_path: Path) -> Manage:
    return host_site.manager(foreign_python, host_site.settle(tmp_path / "site"), site_database)


def test_the_wheel_ships_our_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"jobs", "schedules", "webhooks", "jobscheduler"}
    for app in ("jobs", "schedules", "webhooks", "jobscheduler"):
        assert f"{app}/py.typed" in names
    for app in ("jobs", "schedules", "webhooks"):
        assert any(name.startswith(f"{app}/migrations/0001") for name in names)


@pytest.mark.once
def test_the_pictures_of_the_readme_are_absolute_on_the_index_or_left_out() -> None:
    def describe(public_url: str) -> str:
        command = [sys.executable, "setup.py", "--quiet", "--long-description"]
        environment = {**os.environ, "PUBLIC_URL": public_url}
        return subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, capture_output=True, text=True).stdout

    absolute = describe("https://example.org/v1/")
    assert "](https://example.org/v1/docs/images/overview.png)" in absolute
    assert not re.findall(r"\]\((?!https://)", absolute)
    plain = describe("")
    assert "images/" not in plain
    assert not re.findall(r"\]\((?!https://)", plain)


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
    assert set(needed) == {
        "Django",
        "django-ninja",
        "pydantic",
        "cronsim",
        "cryptography",
        "prometheus-client",
        "psutil",
        "tzdata",
        "urllib3",
    }


def test_the_wheel_has_its_licence_and_a_description_that_points_to_no_file_of_the_checkout(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    (metadata,) = [packed.read(name).decode() for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
    headers, _, description = metadata.partition("\n\n")
    assert {"License-Expression: MIT", "License-File: LICENSE", "Description-Content-Type: text/markdown"} <= set(
        headers.splitlines()
    )
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed.namelist())
    assert description.startswith("# Job Scheduler for Django")
    assert "migrating from another queue" in description  # the words of a link stay
    links = re.findall(r"\]\(([^)]*)\)", description)
    assert [link for link in links if not link.startswith("https://")] == []


def test_every_template_static_and_locale_file_of_an_app_is_in_the_wheel(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for app in ("jobs", "schedules", "webhooks", "jobscheduler"):
        for folder in ("templates", "static", "locale"):
            files = [path for path in (CHECKOUT / app / folder).rglob("*") if path.is_file()]
            assert {str(path.relative_to(CHECKOUT)) for path in files} <= shipped
        assert f"{app}/locale/de/LC_MESSAGES/django.mo" in shipped


@pytest.mark.timeout(900)  # dozens of processes one after the other: on a loaded machine each takes seconds
def test_a_foreign_site_that_follows_the_guide_has_all_of_it(manage: Manage, foreign_python: Path) -> None:
    host_site.tell(manage, wheel_home=foreign_python.parent.parent)


@pytest.mark.once
def test_a_project_with_a_package_of_our_name_may_have_the_wheel_beside_it(
    foreign_python: Path, tmp_path: Path
) -> None:
    """Its tests run, also with a fixture of our name. Once it installs our apps, a sentence says why it cannot."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").touch()
    (tmp_path / "board.py").write_text(
        "import os\n"
        "SECRET_KEY = 'x'\n"
        "INSTALLED_APPS = ['django.contrib.auth', 'django.contrib.contenttypes', 'jobs'] + os.environ['OURS'].split()\n"
    )
    (tmp_path / "test_board.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def drain_jobs():\n"
        "    return 'their own'\n"
        "def test_one(drain_jobs):\n"
        "    assert drain_jobs == 'their own'\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(host_site.OURS)}
    env |= {"DJANGO_SETTINGS_MODULE": "board", "OURS": ""}
    assert "1 passed" in run([foreign_python, "-m", "pytest", "-p", "no:randomly"], cwd=tmp_path, env=env)
    check = [foreign_python, "-m", "django", "check"]
    for ours in ("schedules", "webhooks"):
        done = subprocess.run(
            check, cwd=tmp_path, env={**env, "OURS": ours}, capture_output=True, text=True, check=False
        )
        assert f"is shadowed by {tmp_path / 'jobs'}: a site with" in done.stderr.splitlines()[-1]


@pytest.mark.once
@pytest.mark.parametrize(
    ("module", "refused"),
    [("jobs", True), ("jobs.engine.worker", True), ("webhooks.sender", True), ("jobsite.views", False)],
)
def test_the_foreign_site_takes_every_warning_of_ours_for_an_error(
    foreign_python: Path, module: str, refused: bool
) -> None:
    warn = f"warnings.warn_explicit('old', DeprecationWarning, 'x.py', 1, module={module!r})"
    code = f"import warnings, mainsite.strict; {warn}"
    done = subprocess.run([foreign_python, "-c", code], cwd=host_site.HERE, capture_output=True, check=False)
    assert bool(done.returncode) == refused, done.stderr
