"""Workers over HTTP: readable with a token of all tenants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.factories import WorkerFactory
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db


def test_a_worker_is_shown_as_of_its_last_heartbeat() -> None:
    worker = WorkerFactory.create(name="w1", version="1.2", slots=4, busy=2, stuck=1, serves={"types": ["a"]})
    (document,) = ApiClient("read", tenant=None).get("/workers").json()["items"]

    assert document.pop("id") == str(worker.pk)
    assert document.pop("started_at").endswith("Z")
    assert document.pop("heartbeat_at").endswith("Z")
    assert document == {
        "name": "w1",
        "host": "host-1",
        "pid": worker.pid,
        "version": "1.2",
        "state": "RUNNING",
        "slots": 4,
        "busy": 2,
        "stuck": 1,
        "serves": {"types": ["a"]},
    }


def test_workers_that_stopped_or_are_long_silent_are_not_listed() -> None:
    now = datetime.now(UTC)
    WorkerFactory(name="here")
    WorkerFactory(name="silent", heartbeat_at=now - timedelta(minutes=50))
    WorkerFactory(name="lost", heartbeat_at=now - timedelta(hours=2))
    WorkerFactory(name="stopped", state="STOPPED")
    names = [worker["name"] for worker in ApiClient("read", tenant=None).get("/workers").json()["items"]]
    assert names == ["silent", "here"]


def test_workers_are_listed_newest_first_and_paginated() -> None:
    names = [WorkerFactory.create().name for _ in range(7)]
    assert [worker["name"] for worker in ApiClient("read", tenant=None).list_all("/workers", 3)] == names[::-1]


def test_the_list_requires_read_and_all_tenants() -> None:
    assert ApiClient("read", tenant="default").get("/workers").status_code == 403
    assert ApiClient("admin", tenant="default").get("/workers").status_code == 403
    assert ApiClient("submit", "operate", "work", tenant=None).get("/workers").status_code == 403
