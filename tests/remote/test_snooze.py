"""A remote worker snoozes its job, and names the delay of a retry."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import Job
from jobs.states import Status
from tests.support.remote_client import RemoteClient, get_job
from tests.support.snapshots import list_event_kinds


def test_a_snoozed_job_is_queued_again_with_its_run_open(remote: RemoteClient) -> None:
    lease = remote.start_new_job()

    answer = remote.complete(lease, "SNOOZED", delay_sec=300, error="no data yet")

    assert answer.status_code == 200, answer.content
    assert answer.json()["state"] == "QUEUED"
    job = get_job(lease)
    assert (job.status, job.snooze_count, job.attempt, job.run.status) == (Status.QUEUED, 1, 1, Status.RUNNING)
    assert list_event_kinds(job)[-1] == "SNOOZED"
    assert remote.complete(lease, "SNOOZED", delay_sec=300, error="no data yet").status_code == 200  # a lost reply
    assert get_job(lease).snooze_count == 1
    assert remote.poll_ids() == []


def test_a_stop_request_wins_over_a_snooze(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    remote.api.post(f"/jobs/{lease['job_id']}/cancel")
    assert remote.complete(lease, "SNOOZED", delay_sec=300).json()["state"] == "CANCELED"


def test_a_failure_names_the_delay_of_its_retry(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    assert remote.complete(lease, "FAILED", error="rate limited", delay_sec=500).status_code == 200
    retry = Job.objects.get(retry_of=get_job(lease))
    assert retry.not_before is not None
    assert round((retry.not_before - retry.created_at).total_seconds()) == 500


def test_without_retries_a_named_delay_makes_none(remote: RemoteClient) -> None:
    lease = remote.start_new_job(max_retries=0)
    remote.complete(lease, "FAILED", error="rate limited", delay_sec=5)
    assert not Job.objects.filter(retry_of=get_job(lease)).exists()


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        ("SNOOZED", {}),
        ("SNOOZED", {"delay_sec": -1}),
        ("SNOOZED", {"delay_sec": "5"}),
        ("DONE", {"delay_sec": 5}),
        ("FAILED", {"delay_sec": True}),
    ],
)
def test_a_wrong_delay_is_refused_by_name(remote: RemoteClient, state: str, fields: dict[str, Any]) -> None:
    lease = remote.start_new_job()
    answer = remote.complete(lease, state, **fields)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["body", "delay_sec"]
    assert get_job(lease).status == Status.RUNNING
