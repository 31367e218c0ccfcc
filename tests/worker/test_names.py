"""The names of workers: given ones belong to one live worker; others are `<host>-<n>` with the lowest free n."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.engine.worker import WorkerOptions, registration
from jobs.engine.worker.registration import Registration
from jobs.errors import Conflict
from jobs.models import Worker, WorkerState
from jobs.process_identity import ProcessIdentity
from tests.factories import WorkerFactory

pytestmark = pytest.mark.django_db
ME = ProcessIdentity.current()
IN_CONTAINER = replace(ME, namespace="1")
GONE = replace(ME, started="1")  # no such process can live any more


def create_worker(name: str, identity: ProcessIdentity = ME, *, silent_sec: float = 0, **fields: Any) -> Worker:
    process = {"boot_id": identity.boot_id, "pid_namespace": identity.namespace, "pid_started": identity.started}
    heartbeat_at = timezone.now() - timedelta(seconds=silent_sec)
    fields |= {"name": name, "host": identity.host, "pid": identity.pid, "heartbeat_at": heartbeat_at}
    return WorkerFactory.create(**process, **fields)


def take_name(given: str | None = None) -> str:
    taken = Registration(WorkerOptions(given))
    taken.register()
    assert taken.identity.name == Worker.objects.latest("id").name
    return taken.identity.name


def test_the_lowest_number_that_no_live_worker_has_is_taken() -> None:
    create_worker(f"{ME.host}-1")
    create_worker(f"{ME.host}-3")
    assert [take_name(), take_name()] == [f"{ME.host}-2", f"{ME.host}-4"]


@pytest.mark.parametrize(
    ("identity", "fields"),
    [
        (GONE, {}),
        (IN_CONTAINER, {"silent_sec": 3600}),
        (ME, {"state": WorkerState.STOPPED, "stopped_at": timezone.now()}),
    ],
    ids=["proven gone", "silent", "stopped"],
)
@pytest.mark.parametrize("given", ["mailer", None])
def test_the_name_of_a_dead_worker_is_free(
    identity: ProcessIdentity, fields: dict[str, Any], given: str | None
) -> None:
    dead = create_worker(given or f"{ME.host}-1", identity, **fields)
    assert take_name(given) == dead.name
    dead.refresh_from_db()
    assert (dead.state, dead.stopped_at is None) == (WorkerState.STOPPED, False)


def test_a_worker_in_another_container_keeps_its_name_while_it_sends_heartbeats() -> None:
    create_worker("mailer", IN_CONTAINER)
    create_worker(f"{ME.host}-1", IN_CONTAINER)
    with pytest.raises(Conflict, match=f"named mailer is already running .host {ME.host}, pid {ME.pid}."):
        take_name("mailer")
    assert take_name() == f"{ME.host}-2"


def test_a_name_that_another_start_takes_meanwhile_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    create_worker(f"{ME.host}-1")
    monkeypatch.setattr(registration, "_release_dead_names", lambda *args: set())
    assert take_name() == f"{ME.host}-2"


@pytest.mark.parametrize("given", ["mailer", None])
def test_a_start_whose_reply_was_lost_keeps_its_name_when_it_is_repeated(given: str | None) -> None:
    repeated = Registration(WorkerOptions(given))
    for _ in range(2):
        repeated.register()
        assert repeated.identity.name == (given or f"{ME.host}-1")
        repeated._row = None
    assert Worker.objects.count() == 1
