"""What probes see."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone

from jobs.process_identity import ProcessIdentity
from jobscheduler import health
from tests.factories import WorkerFactory

ASK = """
import django
django.setup()
from django.test import Client

from jobscheduler import health
answer = Client().get({path!r})
print(answer.status_code, answer.text)
"""


def test_healthz_needs_no_database(client: Client) -> None:
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert "no-store" in answer["Cache-Control"]


@pytest.fixture(autouse=True)
def forget_readiness() -> None:
    health.readiness.forget()
    health.worker_readiness.forget()


@pytest.mark.django_db
def test_readyz_is_ok_when_the_database_answers_and_is_migrated(client: Client) -> None:
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "worker": "missing"})


@pytest.mark.django_db
def test_readyz_is_503_while_a_migration_is_missing(client: Client) -> None:
    MigrationRecorder.Migration.objects.filter(app="jobscheduler_jobs").latest("id").delete()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "unavailable", "missing": "migrations"})


@pytest.mark.django_db
@pytest.mark.parametrize("is_ready", [True, False])
def test_readyz_asks_the_database_once_a_second(client: Client, django_assert_num_queries: Any, is_ready: bool) -> None:
    if not is_ready:
        MigrationRecorder.Migration.objects.filter(app="jobscheduler_jobs").latest("id").delete()
    first = client.get("/readyz"), client.get("/readyz?worker=1")
    with django_assert_num_queries(0):
        second = client.get("/readyz"), client.get("/readyz?worker=1")
    statuses = [200 if is_ready else 503, 503]
    assert [answer.status_code for answer in first] == [answer.status_code for answer in second] == statuses


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"state": "QUIET"}, 503),
        ({"state": "STOPPED"}, 503),
        ({"heartbeat_at": timezone.now() - timedelta(hours=1)}, 503),
        ({"pid_started": "1"}, 503),
        (None, 503),
    ],
    ids=["running", "quiet", "stopped", "silent", "killed", "none"],
)
def test_readyz_says_whether_a_worker_takes_jobs_and_with_worker_asks_for_one(
    client: Client, fields: dict[str, Any] | None, status: int
) -> None:
    me = ProcessIdentity.current()
    process = {"host": me.host, "pid": me.pid, "boot_id": me.boot_id, "pid_namespace": me.namespace}
    if fields is not None:
        WorkerFactory.create(**{**process, "pid_started": me.started, **fields})
    plain, strict = client.get("/readyz"), client.get("/readyz?worker=1")
    running = {"status": "ok", "worker": "running"}
    assert (plain.status_code, plain.json()) == (200, running if status == 200 else {**running, "worker": "missing"})
    body = running if status == 200 else {"status": "unavailable", "missing": "worker"}
    assert (strict.status_code, strict.json()) == (status, body)


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["worker=0", "worker=", "worker=yes", "worker=1&worker=2"])
def test_readyz_refuses_any_other_value_of_worker(client: Client, query: str) -> None:
    answer = client.get(f"/readyz?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, ["query", "worker"])


@pytest.mark.once
@pytest.mark.parametrize("url", ["postgres://nobody@127.0.0.1:1/none", "sqlite:///{tmp_path}/missing/db.sqlite3"])
def test_without_a_database_readyz_is_503_and_healthz_is_ok(url: str, tmp_path: Path) -> None:
    env = {**os.environ, "DATABASE_URL": url.format(tmp_path=tmp_path), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    assert _ask("/readyz", env) == '503 {"status": "unavailable", "missing": "database"}'
    assert _ask("/healthz", env) == '200 {"status": "ok"}'


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_only_read(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_are_answered_whatever_host_they_ask_for_and_nothing_else_is(client: Client, path: str) -> None:
    anywhere = {"host": "10.0.0.7:8000"}
    assert client.get(path, headers=anywhere).status_code == 200
    assert client.get("/admin/login/", headers=anywhere).status_code == 400


def _ask(path: str, env: dict[str, str]) -> str:
    program = [sys.executable, "-c", ASK.format(path=path)]
    return subprocess.run(program, env=env, capture_output=True, text=True, check=True).stdout.strip()
