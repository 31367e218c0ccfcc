"""A real qcluster drives the housekeeping of a site that has no worker; stopping it loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.utils import timezone
from django_q.models import OrmQ, Task
from django_q.models import Schedule as Theirs

from jobs.models import Job
from jobs.process_identity import ProcessIdentity
from jobs.states import Status
from schedules.models import Schedule, ScheduleFire
from tests.factories import JobFactory
from tests.support.commands import call
from tests.support.schedules import create_due_schedule, list_fire_times, require_a_job_per_fire
from tests.support.worker_processes import MANAGE, wait_until

STORY_SEC, STOP_SEC = 40.0, 30.0
GONE = replace(ProcessIdentity.current("worker-1"), started="1")  # no such process can live any more


@contextmanager
def qcluster(env: dict[str, str], home: Path) -> Iterator[Path]:
    """Signalled by its own pid only: told as a group, it would hang. It must stop by itself."""
    child_env = {**env, "DJANGO_SETTINGS_MODULE": "tests.contrib.qcluster_settings"}
    log = home / f"qcluster-{uuid4().hex[:6]}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "qcluster"],
            env=child_env,
            cwd=MANAGE.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            ended = process.wait(STOP_SEC)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the cluster did not stop:\n{log.read_text()}") from None
        assert ended == 0, log.read_text()


def orphan() -> Job:
    """Running in a process that is gone, its lease long over."""
    long_ago = timezone.now() - timedelta(hours=1)
    return JobFactory.create(
        running=True,
        lease_owner=GONE.slot_owner(0),
        lease_expires_at=long_ago,
        heartbeat_at=long_ago,
        job_type="sample.noop",
    )


@pytest.mark.timeout(180)
def test_a_qcluster_fires_schedules_and_recovers_orphans_and_stopping_it_loses_nothing(
    process_env: dict[str, str], tmp_path: Path
) -> None:
    row = create_due_schedule(timezone.now().replace(second=0, microsecond=0), job_type="sample.noop", catch_up="all")
    lost = orphan()
    assert call("install_django_q").code == 0
    with qcluster(process_env, tmp_path) as log:
        wait_until(lambda: ScheduleFire.objects.exists(), STORY_SEC, lambda: log.read_text())
        wait_until(
            lambda: Job.objects.filter(pk=lost.pk, status=Status.FAILED).exists(), STORY_SEC, lambda: log.read_text()
        )
    lost.refresh_from_db()
    assert (lost.status_reason, lost.retried_by.status) == ("Scheduler crash recovery", Status.QUEUED)
    require_a_job_per_fire()
    assert not Task.objects.exists()  # it keeps no record of ticks

    seen = len(list_fire_times(row))
    Schedule.objects.update(next_fire_at=timezone.now() - timedelta(hours=1))  # it came due while no scheduler ran
    Theirs.objects.update(next_run=timezone.now())
    with qcluster(process_env, tmp_path) as log:
        wait_until(lambda: len(list_fire_times(row)) > seen, STORY_SEC, lambda: log.read_text())
    require_a_job_per_fire()
    wait_until(lambda: not OrmQ.objects.exists(), 5, "no tick is left behind")


def test_a_tick_that_is_delivered_twice_fires_once(process_env: dict[str, str]) -> None:
    from jobs.contrib import django_q

    row = create_due_schedule(timezone.now().replace(second=0, microsecond=0))
    django_q.tick()
    django_q.tick()
    assert len(list_fire_times(row)) == 1
