"""What the environment decides at the start: a long secret, private files, and no password that is not needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.processes import run
from tests.support.commands import run_process

CHECKOUT = Path(__file__).resolve().parents[2]
SHOW = """
import json, os, django
django.setup()
from django.apps import apps
from django.contrib import admin
import jobscheduler.site
print(json.dumps({
    "password": "ADMIN_PASSWORD" in os.environ,
    "apps": [config.name for config in apps.get_app_configs()],
    "models": sorted(model._meta.label for model in admin.site._registry),
}))
"""

pytestmark = pytest.mark.once


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    own = {
        "DJANGO_SETTINGS_MODULE": "jobscheduler.settings",
        "ENV_FILE": "",
        "SECRET_KEY": "s" * 32,
        "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
    }
    return {**os.environ, **own}


def run_python(script: str, env: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


def show(env: dict[str, str], *arguments: str) -> dict[str, Any]:
    return dict(json.loads(run_python(SHOW, env, *arguments)))


def test_a_short_secret_is_refused_with_its_length_and_a_way_to_make_one(env: dict[str, str]) -> None:
    refused = run_process({**env, "SECRET_KEY": "s" * 31}, "check")
    assert refused.code == 1
    last_line = refused.err.splitlines()[-1]
    assert "SECRET_KEY has 31 characters" in last_line
    assert "token_urlsafe" in last_line
    assert run_process({**env, "SECRET_KEY": "s" * 31, "DEBUG": "True"}, "check").code == 0


@pytest.mark.parametrize("place", ["environment", "file"])
def test_no_process_but_ensureadmin_keeps_the_password(env: dict[str, str], tmp_path: Path, place: str) -> None:
    given = {"ADMIN_PASSWORD": "a long passphrase"}
    if place == "file":
        (tmp_path / "env").write_text("ADMIN_PASSWORD=a long passphrase\n")
        given = {"ENV_FILE": str(tmp_path / "env")}
    assert show({**env, **given})["password"] is False
    assert show({**env, **given}, "ensureadmin")["password"] is True


def test_make_run_does_not_hand_the_password_to_web_and_worker() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    steps = run(["make", "--dry-run", "run"], cwd=CHECKOUT, env=env).splitlines()
    assert "env -u ADMIN_PASSWORD" in steps[-1]
    assert "ensureadmin" in steps[-2]


CREATE_TABLE = """
import os; os.umask(0o022)
import django; django.setup()
from django.db import connection
connection.cursor().execute("CREATE TABLE t (x)")
for entry in os.scandir(os.path.dirname(connection.settings_dict["NAME"])):
    print(entry.name, oct(entry.stat().st_mode & 0o777))
"""


def test_a_new_sqlite_database_and_the_files_beside_it_are_private(env: dict[str, str]) -> None:
    modes = dict(line.split() for line in run_python(CREATE_TABLE, env).splitlines())
    assert modes == dict.fromkeys(("db.sqlite3", "db.sqlite3-wal", "db.sqlite3-shm"), "0o600")


def test_an_existing_sqlite_database_keeps_its_mode(env: dict[str, str], tmp_path: Path) -> None:
    database = tmp_path / "db.sqlite3"
    database.touch()
    database.chmod(0o640)
    assert "db.sqlite3 0o640" in run_python(CREATE_TABLE, env).splitlines()


def test_con_001_unit_without_a_word_the_database_is_a_file_of_this_machine(env: dict[str, str]) -> None:
    script = "from jobscheduler.settings import DATABASES as d; print(d['default']['ENGINE'], d['default']['NAME'])"
    without_url = {name: value for name, value in env.items() if name != "DATABASE_URL"}
    assert run_python(script, without_url).split() == ["django.db.backends.sqlite3", str(CHECKOUT / "db.sqlite3")]


def test_django_q2_is_installed_where_it_is_asked_for_and_has_no_admin_pages(env: dict[str, str]) -> None:
    without = show(env)
    assert "django_q" not in without["apps"]
    with_it = show({**env, "DJANGO_Q": "True"})
    assert "django_q" in with_it["apps"]
    assert with_it["models"] == without["models"]
