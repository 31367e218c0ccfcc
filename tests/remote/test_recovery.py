"""Expired leases are recovered, and jobs that exceed their runtime are ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.utils import timezone

from jobs import direct, process_identity
from jobs.engine.maintenance.recovery import LeaseReaper
from jobs.models import Job, JobEvent
from jobs.process_identity import ProcessIdentity
from jobs.services import jobs as job_services
from jobs.states import DEADLINE_PASSED_REASON, Cause, EventKind, Status
from tests.factories import SAMPLE_TYPE
from tests.sample_app import job_types
from tests.support.remote_client import RemoteClient, get_job

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types

SPOOF = "r@host:0123456789abcdef:4026531836:1:1"  # looks like the owner of a local worker whose process is gone


def age_heartbeat(lease: dict[str, Any], seconds: float) -> None:
    """Move the last heartbeat this many seconds into the past."""
    heartbeat_at = Now() - timedelta(seconds=seconds)
    monotonic_sec = process_identity.time.monotonic() - seconds
    clock = f"{process_identity.read_boot_id()}/{monotonic_sec:.3f}" if _is_sqlite() else None
    Job.objects.filter(pk=lease["job_id"]).update(
        lease_expires_at=heartbeat_at + timedelta(seconds=30), heartbeat_at=heartbeat_at, beat_clock=clock
    )


def _is_sqlite() -> bool:
    return connection.vendor == "sqlite"


def test_an_expired_lease_is_recovered_like_a_local_one(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    remote.send_heartbeat(lease, checkpoint={"page": 7})
    age_heartbeat(lease, 60)
    assert LeaseReaper().run_round() == 1
    job = get_job(lease)
    assert (job.status, job.status_reason, job.run.error) == (Status.FAILED, "lease expired", "lease expired")
    event = JobEvent.objects.get(job_id=job.pk, kind=EventKind.FAILED)
    assert (event.data["cause"], event.data["worker"]) == (Cause.LEASE_EXPIRED, "indexer-1")
    retry = Job.objects.get(retry_of=job)
    assert (retry.status, retry.remote, retry.checkpoint) == (Status.QUEUED, True, {"page": 7})


def test_the_event_names_the_worker_as_it_reported_itself(remote: RemoteClient) -> None:
    job_id = remote.submit()
    remote.poll()
    lease = remote.start(job_id, pid=4711, host="box-3")
    age_heartbeat(lease, 60)
    LeaseReaper().run_round()
    data = JobEvent.objects.get(job_id=job_id, kind=EventKind.FAILED).data
    assert (data["worker"], data["host"], data["pid"]) == ("indexer-1", "box-3", 4711)


def test_a_lease_within_its_grace_is_left_alone(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    age_heartbeat(lease, 35)
    assert LeaseReaper().run_round() == 0
    assert remote.send_heartbeat(lease).status_code == 200


@pytest.mark.parametrize(
    ("verb", "status"), [(job_services.cancel, Status.CANCELLED), (job_services.pause, Status.PAUSED)]
)
def test_a_stop_request_outlives_the_worker(remote: RemoteClient, verb: Any, status: Status) -> None:
    lease = remote.start_new_job()
    verb(lease["job_id"])
    age_heartbeat(lease, 60)
    assert LeaseReaper().run_round() == 1
    assert get_job(lease).status == status
    assert not Job.objects.filter(retry_of_id=lease["job_id"]).exists()


def test_polls_do_not_recover_more_often_than_a_worker_would(remote: RemoteClient) -> None:
    lease = remote.start_new_job(max_retries=1)
    age_heartbeat(lease, 60)
    RemoteClient(remote.api, worker="indexer-2", addon="another").poll()
    assert get_job(lease).status == Status.RUNNING  # the first poll has just run the recovery


def test_a_poll_recovers_expired_leases_where_no_worker_runs(
    remote: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.engine.maintenance import runner

    lease = remote.start_new_job()
    age_heartbeat(lease, 60)
    monkeypatch.setattr(runner, "_offer_tasks", runner.build_offer_tasks())
    remote.poll()
    assert get_job(lease).status == Status.FAILED


@pytest.mark.sqlite_only
def test_a_clock_that_jumps_ahead_ends_no_lease_and_no_runtime(
    remote: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = remote.start_new_job(max_runtime_sec=600)
    later = timezone.now() + timedelta(days=1)
    monkeypatch.setattr(timezone, "now", lambda: later)
    Job.objects.filter(pk=lease["job_id"]).update(lease_expires_at=later - timedelta(hours=1))
    assert LeaseReaper().run_round() == 0
    assert remote.send_heartbeat(lease).status_code == 200
    assert get_job(lease).status == Status.RUNNING


# ---------------------------------------------------------------------- running for too long


def exceed_runtime(lease: dict[str, Any], seconds: float) -> None:
    """Let the job exceed its runtime. Events are never rewritten, so the limit changes instead of the start."""
    started = JobEvent.objects.get(job_id=lease["job_id"], kind=EventKind.RUNNING)
    limit_sec = 1e-6 if _is_sqlite() else max((timezone.now() - started.at).total_seconds() / 2, 1e-6)
    Job.objects.filter(pk=lease["job_id"]).update(max_runtime_sec=min(limit_sec, 1.0 / seconds))


def test_past_its_runtime_a_job_fails_and_its_lease_is_void(remote: RemoteClient) -> None:
    lease = remote.start_new_job(max_runtime_sec=600)
    assert LeaseReaper().run_round() == 0
    exceed_runtime(lease, 601)
    assert LeaseReaper().run_round() == 1
    job = get_job(lease)
    assert (job.status, job.status_reason) == (Status.FAILED, "timeout")
    assert JobEvent.objects.get(job_id=job.pk, kind=EventKind.FAILED).data["cause"] == Cause.TIMEOUT
    assert Job.objects.filter(retry_of=job).exists()
    assert remote.complete(lease).status_code == 409


def test_a_heartbeat_past_the_runtime_ends_the_job_itself(remote: RemoteClient) -> None:
    lease = remote.start_new_job(max_runtime_sec=600)
    assert remote.send_heartbeat(lease).status_code == 200
    exceed_runtime(lease, 601)
    refused = remote.send_heartbeat(lease, progress=0.9)
    assert (refused.status_code, refused.json()["code"]) == (409, "lease_lost")
    assert (get_job(lease).status, get_job(lease).status_reason) == (Status.FAILED, "timeout")


def test_the_runtime_starts_again_after_a_pause(remote: RemoteClient) -> None:
    lease = remote.start_new_job(max_runtime_sec=600)
    job_services.pause(lease["job_id"])
    remote.complete(lease, "PAUSED")
    job_services.resume(lease["job_id"])
    remote.poll()
    second_lease = remote.start(lease["job_id"])
    starts = JobEvent.objects.filter(job_id=lease["job_id"], kind=EventKind.RUNNING)
    assert starts.count() == 2
    assert starts.get(token=second_lease["lease_id"]).at == starts.latest("id").at
    assert LeaseReaper().run_round() == 0


# ---------------------------------------------------------------------- spoofed owners


def test_a_remote_worker_cannot_pass_for_a_local_one(remote: RemoteClient) -> None:
    spoofing_client = RemoteClient(remote.api, worker=SPOOF)
    lease = spoofing_client.start_new_job()
    owner = get_job(lease).lease_owner
    assert owner is not None
    assert ProcessIdentity.parse_owner(owner) is None
    age_heartbeat(lease, 35)
    assert LeaseReaper().run_round() == 0


# ---------------------------------------------------------------------- deadlines and direct calls


def test_a_job_past_its_deadline_is_not_offered_and_ends_skipped(remote: RemoteClient) -> None:
    late = remote.submit(deadline_at="2031-01-01T00:00:00Z")
    Job.objects.filter(pk=late).update(deadline_at=Now() - timedelta(seconds=1))
    assert remote.poll_ids() == []
    assert (get_job(late).status, get_job(late).status_reason) == (Status.SKIPPED, DEADLINE_PASSED_REASON)


def test_an_offer_that_is_started_past_the_deadline_is_refused_and_the_job_ends_skipped(remote: RemoteClient) -> None:
    offered = remote.submit(deadline_at="2031-01-01T00:00:00Z")
    assert remote.poll_ids() == [offered]
    Job.objects.filter(pk=offered).update(deadline_at=Now() - timedelta(seconds=1))
    assert remote.try_start(offered).status_code == 409
    assert (get_job(offered).status, get_job(offered).status_reason) == (Status.SKIPPED, DEADLINE_PASSED_REASON)


@pytest.mark.django_db(transaction=True)
def test_while_a_direct_call_has_the_slot_nothing_is_offered(remote: RemoteClient, settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": 1}}
    waiting = remote.submit()
    with direct.slot(SAMPLE_TYPE, wait=0):
        assert remote.poll_ids() == []
    assert remote.poll_ids() == [waiting]
