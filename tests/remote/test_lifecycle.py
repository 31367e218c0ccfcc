"""The life of a remote job over HTTP: submitted, offered, started, extended and ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from jobs.models import GroupStatus, Job, JobEvent, JobLog, JobRun
from jobs.redaction import MASK
from jobs.registry import job as handler
from jobs.registry import registry
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Cause, EventKind, Status
from tests.factories import SAMPLE_TYPE, JobGroupFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.admin_users import create_reader, log_in
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.remote_client import ADDON, INDEXING, QUEUE, RemoteClient, get_job
from tests.support.snapshots import dump_tables, list_event_kinds

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types


def test_a_job_is_submitted_offered_started_extended_and_completed(remote: RemoteClient) -> None:
    job_id = remote.submit(cost_units=30, priority="HIGH", constraints={"cpu_heavy": True})
    (offer,) = remote.poll()
    assert (offer["job_id"], offer["state"], offer["payload"]) == (str(job_id), "DISPATCHING", INDEXING["payload"])
    lease = remote.start(job_id, pid=4711, host="box-3")
    assert lease["payload"] == INDEXING["payload"]
    assert (lease["attempt"], lease["fence"], lease["checkpoint"]) == (1, 1, None)
    document = remote.api.get(f"{QUEUE}/jobs/{job_id}").json()
    assert (document["state"], document["lease_id"], document["pid"]) == ("RUNNING", lease["lease_id"], 4711)
    assert remote.send_heartbeat(lease, progress=0.5, message="half").json()["cancel_requested"] is False
    response = remote.complete(lease, artifacts={"result": 42})
    assert response.status_code == 200
    assert (response.json()["state"], response.json()["lease_id"]) == ("DONE", None)
    run = JobRun.objects.get(job_id=job_id)
    assert (run.status, run.exit_code, run.artifacts) == (Status.COMPLETED, 0, {"result": 42})
    assert list_event_kinds(get_job(job_id)) == ["SUBMITTED", "DISPATCHING", "RUNNING", "COMPLETED"]


def test_a_start_has_the_context_of_the_submission_and_the_group(remote: RemoteClient, settings: Any) -> None:
    assert (lease := remote.start_new_job())["context"] == {}
    assert lease["group_id"] is None
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "JOB_CONTEXT": "tests.sample_app.context.get_request_id"}
    assert remote.start_new_job(slot=1)["context"] == {"request_id": "request 4711"}
    final = {"job_type": "tests.remote_final", "addon_id": ADDON}
    before = registry._handlers
    handler("tests.remote_final", remote=True)(lambda: None)
    try:
        group = groups.create([{"job_type": SAMPLE_TYPE, "params": {"text": "x"}}], then=final)
        executor.complete(executor.claim(group.jobs.get(group_index=0)))
        (job_id,) = remote.poll_ids()
        assert remote.start(job_id, slot=2)["group_id"] == str(group.pk)
    finally:
        registry._handlers = before


def test_the_event_of_a_start_has_its_lease_for_workers_and_operators_alone(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    local = executor.claim(job_services.enqueue(SAMPLE_TYPE, {"text": "x"}))
    editor, reader = create_reader("editor", "change_job"), create_reader("reader")
    for job_id, lease_id in ((lease["job_id"], lease["lease_id"]), (str(local.pk), str(local.lease_token))):
        path = f"/jobs/{job_id}/events"
        started = JobEvent.objects.get(job_id=job_id, kind=EventKind.RUNNING)
        for shown in (ApiClient("read", "work"), ApiClient("read", "operate"), ApiClient("admin")):
            assert shown.get(path).json()["items"][-1]["data"]["lease_id"] == lease_id
        assert lease_id not in ApiClient("read").get(path).content.decode()
        for user, is_shown in ((editor, True), (reader, False)):
            for page in (f"/api{path}", f"/admin/jobscheduler_jobs/jobevent/{started.pk}/change/"):
                content = log_in(user).get(page)
                assert (content.status_code, lease_id in content.content.decode()) == (200, is_shown), page


def test_the_owner_names_token_worker_and_slot(remote: RemoteClient) -> None:
    lease = remote.start_new_job(slot=3)
    started = JobEvent.objects.get(job_id=lease["job_id"], kind=EventKind.RUNNING)
    token = started.data["api_token_id"]
    assert get_job(lease).lease_owner == f"r:{token}:indexer-1#3"
    assert (started.actor_kind, started.actor_name) == ("worker", "tests/indexer-1")


@pytest.mark.parametrize(
    ("state", "fields", "status", "reason", "exit_code"),
    [
        ("DONE", {}, Status.COMPLETED, "", 0),
        ("DONE", {"exit_code": 3}, Status.COMPLETED, "", 3),
        ("SKIPPED", {"error": "nothing new"}, Status.SKIPPED, "nothing new", 0),
        ("FAILED", {"error": "boom\nline 2", "exit_code": 7}, Status.FAILED, "boom", 7),
        ("FAILED", {}, Status.FAILED, "failed", 1),
    ],
)
def test_a_job_ends_in_the_state_that_its_worker_reports(
    remote: RemoteClient, state: str, fields: dict[str, Any], status: Status, reason: str, exit_code: int
) -> None:
    lease = remote.start_new_job(max_retries=0)
    assert remote.complete(lease, state, **fields, artifacts={"x": 1}).json()["state"] == state
    job = get_job(lease)
    assert (job.status, job.status_reason) == (status, reason)
    assert (job.run.exit_code, job.run.artifacts) == (exit_code, {"x": 1})


def test_a_failure_is_retried_as_a_new_job_like_any_other(remote: RemoteClient) -> None:
    lease = remote.start_new_job(tags=["a"])
    remote.send_heartbeat(lease, checkpoint={"page": 3}, tokens_used=5)
    assert remote.complete(lease, "FAILED", error="boom").json()["state"] == "FAILED"
    retry = Job.objects.get(retry_of_id=lease["job_id"])
    assert (retry.attempt, retry.remote, retry.addon_id, retry.checkpoint) == (2, True, ADDON, {"page": 3})
    Job.objects.filter(pk=retry.pk).update(not_before=Now() - timedelta(seconds=1))
    assert remote.poll_ids() == [retry.pk]
    second_lease = remote.start(retry.pk)
    assert (
        second_lease["attempt"],
        second_lease["fence"],
        second_lease["checkpoint"],
        second_lease["tokens_used"],
    ) == (2, 2, {"page": 3}, 0)


def test_the_fields_of_a_heartbeat_are_stored(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    lines = [{"level": "WARNING", "message": "look", "at": "2030-01-01T00:00:00Z"}, {"message": "and look"}]
    fields = {"progress": 0.25, "message": "a quarter", "tokens_used": 7, "checkpoint": {"page": 1}, "logs": lines}
    before = get_job(lease).lease_expires_at
    assert remote.send_heartbeat(lease, **fields).status_code == 200
    job = get_job(lease)
    assert (job.progress, job.progress_message, job.tokens_used, job.checkpoint) == (0.25, "a quarter", 7, {"page": 1})
    assert job.lease_expires_at > before
    first, second = JobLog.objects.filter(job_id=job.pk).order_by("id")
    assert (first.level, first.message, first.at.year) == ("WARNING", "look", 2030)
    assert (second.level, second.message) == ("INFO", "and look")
    assert remote.send_heartbeat(lease).status_code == 200
    assert (get_job(lease).progress, get_job(lease).checkpoint) == (0.25, {"page": 1})


def test_used_tokens_are_a_total_that_never_decreases(remote: RemoteClient) -> None:
    lease = remote.start_new_job(token_limit=100)
    remote.send_heartbeat(lease, tokens_used=60)
    assert remote.send_heartbeat(lease, tokens_used=50).json()["cancel_requested"] is False
    assert get_job(lease).tokens_used == 60


@pytest.mark.parametrize("state", ["DONE", "SKIPPED", "FAILED", "CANCELED", "PAUSED", "hand_back"])
def test_past_its_token_limit_a_job_fails_whatever_the_worker_reports(remote: RemoteClient, state: str) -> None:
    lease = remote.start_new_job(token_limit=100)
    assert remote.send_heartbeat(lease, tokens_used=100).json()["cancel_requested"] is False
    document = remote.send_heartbeat(lease, tokens_used=101).json()
    assert (document["cancel_requested"], document["cancel_mode"]) == (True, "CANCEL")
    for _ in range(2):
        response = remote.release(lease, hand_back=True) if state == "hand_back" else remote.complete(lease, state)
        assert response.status_code == 200, response.content
    job = get_job(lease)
    assert (job.status, job.status_reason) == (Status.FAILED, "token limit exceeded")
    assert JobEvent.objects.get(job_id=job.pk, kind=EventKind.FAILED).data["cause"] == Cause.TOKEN_LIMIT
    assert not Job.objects.filter(retry_of=job).exists()


@pytest.mark.parametrize(
    ("verb", "mode", "state", "status"),
    [
        (job_services.cancel, "CANCEL", "CANCELED", Status.CANCELLED),
        (job_services.pause, "PAUSE", "PAUSED", Status.PAUSED),
    ],
)
def test_a_stop_request_reaches_the_worker_and_is_answered(
    remote: RemoteClient, verb: Any, mode: str, state: str, status: Status
) -> None:
    lease = remote.start_new_job()
    verb(lease["job_id"])
    document = remote.send_heartbeat(lease, checkpoint=[1]).json()
    assert (document["cancel_requested"], document["cancel_mode"]) == (True, mode)
    assert remote.complete(lease, state, artifacts={"half": 1}).json()["state"] == state
    assert (get_job(lease).status, get_job(lease).run.artifacts) == (status, {"half": 1})


def test_a_paused_job_continues_with_its_run_checkpoint_and_artifacts(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    job_services.pause(lease["job_id"])
    remote.send_heartbeat(lease, checkpoint={"page": 2}, tokens_used=9)
    remote.complete(lease, "PAUSED", artifacts={"first": 1})
    assert remote.poll_ids() == []
    job_services.resume(lease["job_id"])
    second_lease = remote.start(remote.poll_ids()[0])
    assert (
        second_lease["attempt"],
        second_lease["fence"],
        second_lease["checkpoint"],
        second_lease["tokens_used"],
    ) == (1, 2, {"page": 2}, 9)
    remote.complete(second_lease, artifacts={"second": 2})
    assert get_job(lease).run.artifacts == {"first": 1, "second": 2}


@pytest.mark.parametrize(
    ("verb", "state"),
    [(None, "CANCELED"), (None, "PAUSED"), (job_services.cancel, "PAUSED"), (job_services.pause, "CANCELED")],
)
def test_a_stop_that_was_not_requested_is_refused(remote: RemoteClient, verb: Any, state: str) -> None:
    lease = remote.start_new_job()
    if verb is not None:
        verb(lease["job_id"])
    before = dump_tables()
    refused = remote.complete(lease, state)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_asked")
    assert dump_tables() == before


def test_a_job_that_completes_before_it_notices_a_stop_stays_completed(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    job_services.cancel(lease["job_id"])
    assert remote.complete(lease).json()["state"] == "DONE"


def test_a_failure_after_a_cancel_request_is_not_retried(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    job_services.cancel(lease["job_id"])
    remote.complete(lease, "FAILED", error="boom")
    assert not Job.objects.filter(retry_of_id=lease["job_id"]).exists()


def test_a_job_that_is_handed_back_waits_for_another_worker(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    remote.send_heartbeat(lease, checkpoint={"page": 5})
    for _ in range(2):
        assert remote.release(lease, hand_back=True).json() == {"released": True}
    assert (get_job(lease).status, get_job(lease).run.status) == (Status.QUEUED, Status.RUNNING)
    other = RemoteClient(remote.api, worker="indexer-2")
    second_lease = other.start(other.poll_ids()[0])
    assert (second_lease["attempt"], second_lease["fence"], second_lease["checkpoint"]) == (1, 2, {"page": 5})


def test_a_job_that_was_asked_to_stop_and_is_handed_back_stops(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    job_services.cancel(lease["job_id"])
    assert remote.release(lease, hand_back=True).status_code == 200
    assert get_job(lease).status == Status.CANCELLED


def test_a_job_s_lease_is_not_released_like_an_admission(remote: RemoteClient) -> None:
    lease = remote.start_new_job()
    for fields in ({}, {"hand_back": False}):
        refused = remote.release(lease, **fields)
        assert (refused.status_code, refused.json()["code"]) == (409, "report_with_complete")
    assert get_job(lease).status == Status.RUNNING


def test_log_lines_are_capped_over_all_heartbeats(remote: RemoteClient, settings: Any) -> None:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "LOG_LINES_PER_JOB": 3}
    lease = remote.start_new_job()
    for start in (0, 2, 4, 6):
        assert (
            remote.send_heartbeat(lease, logs=[{"message": f"line {n}"} for n in (start, start + 1)]).status_code == 200
        )
    messages = list(JobLog.objects.filter(job_id=lease["job_id"]).order_by("id").values_list("message", flat=True))
    assert messages == ["line 0", "line 1", "line 2", "only the first 3 lines are kept"]


def test_a_result_that_cannot_be_stored_whole_still_ends_the_job(remote: RemoteClient) -> None:
    lease, deep = remote.start_new_job(max_retries=0), []
    for _ in range(100):
        deep = [deep]
    response = remote.complete(lease, "FAILED", error="x" * 200_000, artifacts={"deep": deep, "result": 1})
    assert response.status_code == 200, response.content
    job = get_job(lease)
    assert (len(job.run.error), len(job.status_reason), job.run.artifacts["result"]) == (64_000, 500, 1)


def test_secrets_reach_the_worker_only(remote: RemoteClient) -> None:
    secret = {"password": "open sesame"}
    job_id = remote.submit(payload=secret)
    (offer,) = remote.poll()
    lease = remote.start(job_id)
    remote.send_heartbeat(lease, checkpoint=secret)
    assert (offer["payload"], lease["payload"]) == (secret, secret)
    assert remote.start(job_id)["checkpoint"] == secret
    masked = {"password": MASK}
    assert remote.api.get(f"{QUEUE}/jobs/{job_id}").json()["payload"] == masked
    assert remote.api.get(f"{QUEUE}/jobs").json()["items"][0]["payload"] == masked
    assert remote.api.get(f"/jobs/{job_id}").json()["params"] == masked
    assert remote.complete(lease).json()["payload"] == secret


def test_a_group_is_running_once_a_remote_worker_has_started_a_member(remote: RemoteClient) -> None:
    group = JobGroupFactory.create()
    job_id = remote.submit()
    Job.objects.filter(pk=job_id).update(group=group, group_index=0)
    lease = remote.start(remote.poll_ids()[0])
    group.refresh_from_db()
    assert group.status == GroupStatus.RUNNING
    remote.complete(lease)
    group.refresh_from_db()
    assert group.status == GroupStatus.COMPLETED


@pytest.fixture
def declared_type() -> Any:
    """Register a remote type with a signature in this process."""
    before = dict(registry._handlers)

    @handler("tests.render", remote=True, max_retries=1, resource="gpu")
    def render(width: int) -> None: ...

    yield render
    registry._handlers = before


def test_a_declared_remote_type_is_validated_by_its_signature_and_runs_remotely(
    remote: RemoteClient, declared_type: Any
) -> None:
    refused = remote.api.post(f"{QUEUE}/jobs/submit", {**INDEXING, "job_type": "tests.render", "payload": {"w": 1}})
    assert ["body", "payload", "width"] in read_error_locations(refused)
    job = declared_type.using(addon_id=ADDON).enqueue(width=3)
    lease = remote.start(remote.poll_ids()[0])
    assert (lease["job_id"], lease["payload"]) == (str(job.pk), {"width": 3})
    assert (get_job(lease).resource, get_job(lease).max_retries) == ("gpu", 1)


def test_jobs_without_addon_are_offered_to_pollers_without_addon(declared_type: Any) -> None:
    job = declared_type.enqueue(width=3)
    api = ApiClient("work")
    assert RemoteClient(api).poll_ids() == []
    (offer,) = api.get(f"{QUEUE}/dispatchable").json()["items"]
    assert (offer["job_id"], offer["addon_id"]) == (str(job.pk), "")


def test_the_params_of_a_waiting_job_of_an_unknown_type_can_be_edited(remote: RemoteClient) -> None:
    job_id, api = remote.submit(payload={"path": "/a"}), ApiClient("read", "operate")
    edited = api.patch(f"/jobs/{job_id}", {"params": {"path": "/b", "deep": [{"x": 1}]}})
    assert (edited.status_code, edited.json()["params"]) == (200, {"path": "/b", "deep": [{"x": 1}]})
    refused = api.patch(f"/jobs/{job_id}", {"params": ["no object"]})
    assert (refused.status_code, refused.json()["errors"][0]["loc"]) == (422, ["body", "params"])
    assert remote.start(remote.poll_ids()[0])["payload"] == edited.json()["params"]


def test_an_unknown_type_stays_unknown_in_the_other_apis(remote: RemoteClient) -> None:
    remote.submit()
    refused = remote.api.post("/jobs", {"job_type": "indexing", "params": {}})
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_job_type")


@pytest.mark.parametrize("state", ["FAILED", "SKIPPED"])
def test_the_secrets_of_the_payload_are_masked_in_what_a_worker_reports(remote: RemoteClient, state: str) -> None:
    lease = remote.start_new_job(payload={"api_token": "hunter2hunter2", "pin_code_secret": 4711})
    words = "login with hunter2hunter2 and 4711"
    remote.send_heartbeat(lease, message=words, logs=[{"message": words}])
    assert remote.complete(lease, state=state, error=words).status_code == 200
    job = get_job(lease)
    texts = [job.status_reason, job.progress_message, JobLog.objects.get().message]
    assert {*texts, job.events.get(kind=state).reason} == {f"login with {MASK} and {MASK}"}
    assert "hunter2" not in job.run.error


def test_a_secret_at_the_end_of_a_text_that_is_cut_is_masked_as_a_whole(remote: RemoteClient) -> None:
    lease = remote.start_new_job(payload={"api_token": "hunter2hunter2"})
    remote.send_heartbeat(lease, message="x" * 490 + "hunter2hunter2")
    remote.complete(lease, state="FAILED", error="x" * 490 + "hunter2hunter2")
    job = get_job(lease)
    assert (len(job.status_reason), "hunter" in job.status_reason + job.progress_message) == (496, False)
