"""The doctor names the problems of a deployment, and its exit code reports them."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Any

import pytest
import yaml
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from jobs.models import Job, Worker
from jobs.services.jobs import enqueue
from schedules import services as schedules
from schedules.models import Schedule
from tests.packaging.dockerfile import CHECKOUT
from tests.support.commands import CommandResult, call, run_process
from tests.support.executor import claim
from webhooks import services as webhooks
from webhooks.models import WebhookEndpoint

pytestmark = pytest.mark.django_db
TOPICS = {
    "settings",
    "static",
    "database",
    "migrations",
    "triggers",
    "clock",
    "notifications",
    "connections",
    "workers",
    "limits",
    "leases",
    "schedules",
    "webhooks",
}


def read_findings(level: str, topic: str) -> str:
    """Return the messages of a topic at this level; empty if there are none."""
    findings = call("doctor", "--json").json["findings"]
    return " ".join(
        finding["message"] for finding in findings if (finding["level"], finding["topic"]) == (level, topic)
    )


def create_worker(**fields: Any) -> Worker:
    return Worker.objects.create(**{"name": "w", "host": "h", "pid": 1, "version": "1", **fields})


def test_a_healthy_deployment_is_reported_by_topic_and_exits_0() -> None:
    create_worker()
    result = call("doctor", "--json")
    assert (result.code, result.json["healthy"]) == (0, True)
    assert {finding["topic"] for finding in result.json["findings"]} == TOPICS
    assert "ok       workers: 1 running, 1 slot\n" in call("doctor").out


def test_warnings_fail_only_with_fail_level_warning() -> None:
    assert read_findings("warning", "workers") == "none is running"
    assert [call("doctor", *level).code for level in ([], ["--fail-level", "warning"])] == [0, 1]


def test_waiting_jobs_without_a_worker_are_an_error() -> None:
    job = enqueue("system.noop")
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - timedelta(minutes=5))
    create_worker(heartbeat_at=timezone.now() - timedelta(hours=1))
    assert read_findings("error", "workers") == "none is running"
    assert call("doctor").code == 1


def test_stuck_slots_idle_slots_and_mixed_versions_are_named() -> None:
    create_worker(slots=3, stuck=2)
    create_worker(name="v", version="2")
    assert read_findings("warning", "workers") == "2 slots are stuck of several versions: 1, 2"
    assert (
        read_findings("warning", "limits")
        == "workers have 4 slots, but the global limit is 1: the other slots stay idle"
    )


def test_con_001_error_workers_of_two_machines_cannot_share_a_sqlite_database() -> None:
    create_worker(boot_id="one", host="web-1")
    create_worker(boot_id="one", host="web-2", name="in a container beside it")
    assert read_findings("error", "workers") == ""
    create_worker(boot_id="two", host="far", name="far", heartbeat_at=timezone.now() - timedelta(hours=1))
    assert read_findings("error", "workers") == "", "the machine has booted since"
    create_worker(boot_id="two", host="far", name="near")
    expected = "several machines share a SQLite database: far, web-1, web-2"
    assert read_findings("error", "workers") == (expected if connection.vendor == "sqlite" else "")


@pytest.mark.pg_only
def test_the_connections_that_workers_may_need_are_compared_with_those_that_the_server_allows() -> None:
    create_worker(slots=4)
    create_worker(name="v", slots=2)
    assert read_findings("ok", "connections").endswith("workers may need 22: 6 slots + 8 × 2")
    create_worker(name="u", slots=1000)
    assert read_findings("warning", "connections").endswith("workers may need 1030: 1006 slots + 8 × 3")


def test_notifications_are_tested_where_the_database_has_them() -> None:
    expected = "SQLite has none; workers look for commits of other processes"
    assert read_findings("ok", "notifications") == (expected if connection.vendor == "sqlite" else "arrive")


def test_an_expired_lease_is_an_error() -> None:
    job = claim(enqueue("system.noop"))
    Job.objects.filter(pk=job.pk).update(lease_expires_at=timezone.now() - timedelta(hours=1))
    assert read_findings("error", "leases") == "1 job has an expired lease"


def test_overdue_and_broken_schedules_are_named() -> None:
    for name in ("late", "broken"):
        schedules.create({"name": name, "cron": "@daily", "job_type": "system.noop"})
    rows = Schedule.objects
    rows.filter(name="late").update(next_fire_at=timezone.now() - timedelta(hours=1))
    rows.filter(name="broken").update(enabled=False, next_fire_at=None, disabled_reason="broken: no such zone")
    assert read_findings("error", "schedules") == "1 is overdue by more than a minute"
    assert read_findings("warning", "schedules") == "1 is broken and was disabled"


def test_secrets_that_cannot_be_read_are_an_error() -> None:
    with override_settings(JOBSCHEDULER={"WEBHOOK_SECRET_KEY": "a key of its own, now lost"}):
        webhooks.create("https://example.com/", ["job.completed"])
    assert WebhookEndpoint.objects.exists()
    assert read_findings("error", "webhooks") == "the secret of 1 cannot be decrypted"
    assert read_findings("warning", "webhooks") == "secrets are encrypted with SECRET_KEY"


def test_bad_settings_are_reported_and_nothing_breaks() -> None:
    with override_settings(JOBSCHEDULER={"LEASE_SECS": 3}):
        result = call("doctor")
    assert (result.code, "jobs.E001" in result.out) == (1, True)


def test_files_that_were_not_collected_are_an_error(tmp_path: Any) -> None:
    storages = {"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}}
    with override_settings(STORAGES=storages, STATIC_ROOT=str(tmp_path), DEBUG=False):
        assert read_findings("error", "static") == "the console's files have not been collected"


def test_files_that_are_served_uncollected_are_a_warning(tmp_path: Any) -> None:
    storages = {"staticfiles": {"BACKEND": "jobscheduler.static.OptionalManifestStorage"}}
    with override_settings(STORAGES=storages, STATIC_ROOT=str(tmp_path), DEBUG=False):
        assert read_findings("warning", "static") == "not collected; served from the apps' own folders"


@pytest.mark.parametrize("missing_setting", [{"STATIC_ROOT": ""}, {"STATIC_URL": None}], ids=str)
def test_missing_static_settings_are_an_error(missing_setting: dict[str, Any]) -> None:
    storages = {"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}}
    with override_settings(STORAGES=storages, DEBUG=False, **missing_setting):
        assert next(iter(missing_setting)) in read_findings("error", "static")


def test_the_health_check_of_a_worker_checks_the_worker_of_its_own_host_and_nothing_else() -> None:
    service = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]["worker"]
    _check, program, *arguments = service["healthcheck"]["test"]
    assert program == "django-admin"
    with override_settings(JOBSCHEDULER={"WEBHOOK_SECRET_KEY": "a key of its own, now lost"}):
        webhooks.create("https://example.com/", ["job.completed"])
    create_worker(name="elsewhere", host="another")
    result = call(*arguments)
    assert (result.code, "no worker is running on this host" in result.out) == (1, True)
    own_worker = create_worker(name="mine", host=socket.gethostname()[:60])
    assert (call(*arguments).code, call("doctor").code) == (0, 1)
    own_worker.state = "STOPPED"
    own_worker.save()
    assert call(*arguments).code == 1


def test_a_worker_health_check_reports_bad_settings_and_nothing_breaks() -> None:
    with override_settings(JOBSCHEDULER={"LEASE_SECS": 3}):
        result = call("doctor", "--worker")
    assert (result.code, "jobs.E001" in result.out) == (1, True)


@pytest.mark.parametrize("url", ["sqlite:///{}/empty.sqlite3", "sqlite:////nowhere/at/all.sqlite3"])
def test_a_database_without_tables_or_connection_is_reported_without_a_traceback(url: str, tmp_path: Any) -> None:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": url.format(tmp_path)}
    result: CommandResult = run_process(env, "doctor")
    assert (result.code, "Traceback" in result.err) == (1, False)
    assert ("migrations: jobscheduler_jobs 0001_initial" in result.out) == ("empty" in url)
    assert ("database: does not answer" in result.out) == ("nowhere" in url)


@pytest.mark.pg_only
def test_the_clock_of_a_server_is_compared_with_the_hosts() -> None:
    assert connection.vendor == "postgresql"
    assert "differs from this host's by" in read_findings("ok", "clock")
