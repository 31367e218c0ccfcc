"""The queue API of addons: submit, read, list and cancel, and bad input to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.api.remote import IntentOut, StartOut
from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.services import tokens
from jobs.states import Status
from tests.factories import SAMPLE_TYPE, job_in
from tests.sample_app import job_types
from tests.support.admin_users import create_reader, log_in
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.remote_client import INDEXING, LEASE, QUEUE, RemoteClient, get_job
from tests.support.snapshots import dump_all_but_tokens, dump_tables

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types

SUBMIT = f"{QUEUE}/jobs/submit"
STATES = {
    Status.PENDING: "QUEUED",
    Status.QUEUED: "QUEUED",
    Status.DISPATCHING: "DISPATCHING",
    Status.RUNNING: "RUNNING",
    Status.PAUSED: "PAUSED",
    Status.COMPLETED: "DONE",
    Status.FAILED: "FAILED",
    Status.SKIPPED: "SKIPPED",
    Status.CANCELLED: "CANCELED",
}


def test_every_field_of_a_submission_is_stored(remote: RemoteClient) -> None:
    fields = {
        "cost_units": 30,
        "priority": "HIGH",
        "constraints": {"cpu_heavy": True, "disk_write_heavy": False, "network_heavy": False},
        "expected_duration_sec": 120,
        "payload": {"path": "/some/dir", "anything": [1, {"at": None}]},
        "time_sensitive": True,
        "deadline_at": "2031-01-01T00:00:00Z",
        "max_runtime_sec": 60,
        "tags": ["a"],
        "target": "book-1",
    }
    start = {"earliest_start_at": "2030-12-28T23:00:00+01:00"}
    job_id = remote.submit(**fields, **start, resource="gpu", token_limit=5, max_retries=1)
    document = remote.api.get(f"{QUEUE}/jobs/{job_id}").json()
    assert {name: document[name] for name in fields} == fields
    assert document["next_earliest_start_at"] == "2030-12-28T22:00:00Z"
    job = get_job(job_id)
    assert (job.remote, job.resource, job.token_limit, job.max_retries) == (True, "gpu", 5, 1)


def test_a_priority_without_a_name_is_told_by_its_number(remote: RemoteClient) -> None:
    assert remote.api.get(f"{QUEUE}/jobs/{remote.submit(priority=60)}").json()["priority"] == 60


def test_an_intent_is_its_whole_chain_by_any_of_its_ids(remote: RemoteClient) -> None:
    key = {"idempotency_key": "k", "priority": "LOW"}
    first = remote.submit(**key)

    def read(job_id: Any) -> tuple[Any, ...]:
        document = remote.api.get(f"{QUEUE}/jobs/{job_id}").json()
        assert (document["job_id"], document["created_at"]) == (str(job_id), submitted_at)
        return document["state"], document["attempts"], document["current_job_id"], document["lease_id"]

    submitted_at = remote.api.get(f"{QUEUE}/jobs/{first}").json()["created_at"]
    assert read(first) == ("QUEUED", 0, str(first), None)
    assert remote.poll_ids() == [first]
    assert read(first) == ("DISPATCHING", 0, str(first), None)
    reported = remote.complete(remote.start(first), "FAILED", error="no").json()
    retry = Job.objects.get(retry_of_id=first)
    assert (reported["state"], reported["attempts"], reported["current_job_id"]) == ("FAILED", 1, str(retry.pk))
    for job_id in (first, retry.pk):
        assert read(job_id) == ("QUEUED", 1, str(retry.pk), None)
    assert remote.api.post(SUBMIT, {**INDEXING, **key}).json() == {"job_id": str(first), "state": "QUEUED"}
    job_services.retry(first)  # at once
    assert remote.poll_ids() == [retry.pk]
    lease = remote.start(retry.pk)
    assert [read(job_id) for job_id in (first, retry.pk)] == [("RUNNING", 2, str(retry.pk), lease["lease_id"])] * 2
    assert [intent["job_id"] for intent in remote.api.list_all(f"{QUEUE}/jobs", 10)] == [str(retry.pk)]
    assert remote.api.list_all(f"{QUEUE}/jobs?state=FAILED", 10) == []


def test_the_cancel_of_an_intent_reaches_its_latest_attempt(
    remote: RemoteClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = remote.submit()
    remote.poll()
    remote.complete(remote.start(first), "FAILED")
    retry = Job.objects.get(retry_of_id=first)
    monkeypatch.setattr(job_services, "find_latest_attempt", lambda job_id: job_id)  # the retry came after this look
    cancelled = remote.api.post(f"{QUEUE}/jobs/{first}/cancel", {"reason": "not needed"})
    monkeypatch.undo()
    assert (cancelled.status_code, get_job(retry.pk).status) == (200, Status.CANCELLED)
    document = remote.api.get(f"{QUEUE}/jobs/{first}").json()
    assert (document["state"], document["attempts"], document["reason"]) == ("CANCELED", 1, "not needed")
    refused = remote.api.post(f"{QUEUE}/jobs/{first}/cancel").json()
    assert (refused["status"], refused["state"], refused["allowed"]) == (409, "CANCELLED", ["retry"])


def test_a_submission_returns_id_and_state_alone(remote: RemoteClient) -> None:
    response = remote.api.post(SUBMIT, INDEXING)
    assert response.status_code == 201
    assert response.json() == {"job_id": str(Job.objects.get().pk), "state": "QUEUED"}


def test_a_registered_type_stays_local_and_is_validated(remote: RemoteClient) -> None:
    job_id = remote.submit(job_type=SAMPLE_TYPE, payload={"text": "x"})
    assert not get_job(job_id).remote
    refused = remote.api.post(SUBMIT, {**INDEXING, "job_type": SAMPLE_TYPE, "payload": {"txt": 1}})
    assert ["body", "payload", "text"] in read_error_locations(refused)


def test_the_same_key_and_body_make_one_job(remote: RemoteClient) -> None:
    key = {"Idempotency-Key": "k1"}
    first = remote.api.post(SUBMIT, INDEXING, **key)
    replay = remote.api.post(SUBMIT, {**INDEXING, "idempotency_key": "k1"})
    assert (replay.status_code, replay.json()) == (201, first.json())
    assert ("Idempotent-Replayed" in first, replay["Idempotent-Replayed"]) == (False, "true")
    remote.poll()
    assert remote.api.post(SUBMIT, INDEXING, **key).json()["state"] == "DISPATCHING"
    other = remote.api.post(SUBMIT, {**INDEXING, "payload": {}}, **key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    assert Job.objects.count() == 1


def test_the_submitter_is_in_the_events(remote: RemoteClient) -> None:
    event = JobEvent.objects.get(job_id=remote.submit())
    assert (event.actor_kind, event.actor_name) == ("token", remote.api.actor_name)


def test_tenants_are_isolated() -> None:
    all_tenants, ours = ApiClient("submit", "read", tenant=None), ApiClient("submit", "read", tenant="acme")
    job_id = all_tenants.post(SUBMIT, {**INDEXING, "tenant": "globex"}).json()["job_id"]
    assert get_job(job_id).tenant == "globex"
    assert ours.post(SUBMIT, {**INDEXING, "tenant": "globex"}).status_code == 403
    assert ours.get(f"{QUEUE}/jobs/{job_id}").status_code == 404
    assert ours.post(f"{QUEUE}/jobs/{job_id}/cancel").status_code == 404
    assert ours.get(f"{QUEUE}/jobs").json()["items"] == []


@pytest.mark.parametrize("status", list(Status))
def test_a_job_in_any_status_is_shown_with_the_state_of_the_queue_api(remote: RemoteClient, status: Status) -> None:
    job = job_in(status, target="book-1")
    document = remote.api.get(f"{QUEUE}/jobs/{job.pk}").json()
    assert set(document) == set(IntentOut.model_fields) - {"truncated"}
    assert document["state"] == STATES[status]
    assert document["lease_id"] is None  # lease ids of local workers are not shown


def test_a_start_has_the_documented_fields(remote: RemoteClient) -> None:
    assert set(remote.start_new_job()) == set(StartOut.model_fields)


@pytest.mark.parametrize("state", sorted(set(STATES.values())))
def test_lists_can_be_filtered_by_state(remote: RemoteClient, state: str) -> None:
    ids = {status: str(job_in(status).pk) for status in Status}
    jobs = remote.api.list_all(f"{QUEUE}/jobs?state={state}", 1)
    assert {job["job_id"] for job in jobs} == {ids[status] for status, name in STATES.items() if name == state}
    assert {job["state"] for job in jobs} == {state}


def test_lists_are_newest_first_and_can_be_filtered_by_addon(remote: RemoteClient) -> None:
    first, second = remote.submit(), remote.submit()
    third = RemoteClient(remote.api, addon="sounds").submit()
    assert [job["job_id"] for job in remote.api.list_all(f"{QUEUE}/jobs", 2)] == [str(third), str(second), str(first)]
    assert [job["job_id"] for job in remote.api.list_all(f"{QUEUE}/jobs?addon_id=sounds", 2)] == [str(third)]


@pytest.mark.parametrize(
    ("status", "state"), [(Status.QUEUED, "CANCELED"), (Status.DISPATCHING, "CANCELED"), (Status.RUNNING, "RUNNING")]
)
def test_a_waiting_job_is_cancelled_and_a_running_one_is_asked_to_stop(
    remote: RemoteClient, status: Status, state: str
) -> None:
    job = job_in(status)
    response = remote.api.post(f"{QUEUE}/jobs/{job.pk}/cancel", {"reason": "not needed"})
    assert (response.status_code, response.json()["state"], response.json()["reason"]) == (200, state, "not needed")
    assert get_job(job.pk).cancel_requested == (status == Status.RUNNING)


def cancel(api: ApiClient, job_id: Any) -> int:
    status: int = api.post(f"{QUEUE}/jobs/{job_id}/cancel").status_code
    return status


def test_a_token_with_submit_cancels_only_what_it_submitted() -> None:
    own, other, operator = ApiClient("submit"), ApiClient("submit"), ApiClient("submit", "operate")
    note = {"job_type": SAMPLE_TYPE, "params": {"text": "x"}}
    job_ids = [
        own.post(SUBMIT, INDEXING).json()["job_id"],
        own.post("/jobs", note).json()["id"],
        own.post("/jobs/bulk", {"jobs": [note]}).json()["ids"][0],
        own.post("/job-groups", {"jobs": [note]}).json()["jobs"][0]["id"],
    ]
    before = dump_all_but_tokens()
    refused = other.post(f"{QUEUE}/jobs/{job_ids[0]}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert [cancel(other, job_id) for job_id in job_ids] == [403] * 4
    assert dump_all_but_tokens() == before
    assert [cancel(own, job_id) for job_id in job_ids] == [200] * 4
    assert cancel(operator, other.post(SUBMIT, INDEXING).json()["job_id"]) == 200
    assert cancel(ApiClient("admin"), other.post(SUBMIT, INDEXING).json()["job_id"]) == 200


def test_a_token_cancels_the_retries_of_what_it_submitted() -> None:
    own, other = RemoteClient(ApiClient("submit", "work")), ApiClient("submit")
    lease = own.start_new_job(max_retries=0)
    own.complete(lease, "FAILED", error="no")
    retry = job_services.retry(lease["job_id"])
    assert cancel(other, retry.pk) == 403
    assert cancel(own.api, retry.pk) == 200


def test_a_name_does_not_inherit_the_jobs_of_a_revoked_token() -> None:
    first = ApiClient("submit")
    job_id = first.post(SUBMIT, INDEXING).json()["job_id"]
    tokens.revoke(first.token.pk)
    second = ApiClient("submit")
    assert second.token.name == first.token.name
    assert cancel(second, job_id) == 403


def test_a_session_cancels_any_job_by_its_permission() -> None:
    job_id = ApiClient("submit").post(SUBMIT, INDEXING).json()["job_id"]
    path = f"/api{QUEUE}/jobs/{job_id}/cancel"
    assert log_in(create_reader("reader")).post(path).status_code == 403
    assert log_in(create_reader("canceller", "cancel_job")).post(path).status_code == 200


def test_an_ended_job_cannot_be_cancelled(remote: RemoteClient) -> None:
    job = job_in(Status.COMPLETED)
    refused = remote.api.post(f"{QUEUE}/jobs/{job.pk}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")


def test_a_retry_of_an_unknown_type_is_for_remote_workers_too(remote: RemoteClient) -> None:
    lease = remote.start_new_job(max_retries=0)
    remote.complete(lease, "FAILED")
    assert job_services.retry(lease["job_id"]).remote


# ---------------------------------------------------------------------- bad input

BAD_INPUT: list[tuple[str, dict[str, Any], list[Any]]] = [
    (SUBMIT, {"job_type": "x"}, ["addon_id"]),
    (SUBMIT, {"addon_id": "a"}, ["job_type"]),
    (SUBMIT, {**INDEXING, "addon_id": ""}, ["addon_id"]),
    (SUBMIT, {**INDEXING, "addon_id": 5}, ["addon_id"]),
    (SUBMIT, {**INDEXING, "job_type": "a\nb"}, ["job_type"]),
    (SUBMIT, {**INDEXING, "job_type": "x" * 201}, ["job_type"]),
    (SUBMIT, {**INDEXING, "payload": [1]}, ["payload"]),
    (SUBMIT, {**INDEXING, "payload": "text"}, ["payload"]),
    (SUBMIT, {**INDEXING, "payload": {"a": {"b": "\ud800"}}}, ["payload", "a", "b"]),
    (SUBMIT, {**INDEXING, "cost_units": 101}, ["cost_units"]),
    (SUBMIT, {**INDEXING, "priority": "HIGHEST"}, ["priority"]),
    (SUBMIT, {**INDEXING, "constraints": {"gpu_heavy": True}}, ["constraints", "gpu_heavy"]),
    (SUBMIT, {**INDEXING, "constraints": {"cpu_heavy": 1}}, ["constraints", "cpu_heavy"]),
    (SUBMIT, {**INDEXING, "expected_duration_sec": 0}, ["expected_duration_sec"]),
    (SUBMIT, {**INDEXING, "earliest_start_at": "tomorrow"}, ["earliest_start_at"]),
    (SUBMIT, {**INDEXING, "earliest_start_at": "2030-01-01T00:00:00"}, ["earliest_start_at"]),
    (
        SUBMIT,
        {**INDEXING, "earliest_start_at": "2030-01-02T00:00:00Z", "deadline_at": "2030-01-01T00:00:00Z"},
        ["deadline_at"],
    ),
    (SUBMIT, {**INDEXING, "time_sensitive": True}, ["time_sensitive"]),
    (SUBMIT, {**INDEXING, "max_runtime_sec": -1}, ["max_runtime_sec"]),
    (SUBMIT, {**INDEXING, "tags": ["x" * 65]}, ["tags", 0]),
    (SUBMIT, {**INDEXING, "params": {}}, ["params"]),
    (SUBMIT, {**INDEXING, "not_before": None}, ["not_before"]),
    (SUBMIT, {**INDEXING, "template": "x"}, ["template"]),
    (SUBMIT, {**INDEXING, "state": "DONE"}, ["state"]),
    (SUBMIT, {**INDEXING, "lease_id": "x"}, ["lease_id"]),
    (SUBMIT, {**INDEXING, "idempotency_key": "é"}, ["idempotency_key"]),
    (f"{QUEUE}/kick", {"now": True}, ["now"]),
    ("start", {}, ["worker_id"]),
    ("start", {"worker_id": ""}, ["worker_id"]),
    ("start", {"worker_id": "x" * 201}, ["worker_id"]),
    ("start", {"worker_id": "a\0b"}, ["worker_id"]),
    ("start", {"worker_id": "w", "slot": -1}, ["slot"]),
    ("start", {"worker_id": "w", "slot": 10_000}, ["slot"]),
    ("start", {"worker_id": "w", "slot": True}, ["slot"]),
    ("start", {"worker_id": "w", "pid": 0}, ["pid"]),
    ("start", {"worker_id": "w", "pid": "1"}, ["pid"]),
    ("start", {"worker_id": "w", "host": 5}, ["host"]),
    ("start", {"worker_id": "w", "lease_token": "x"}, ["lease_token"]),
    ("complete", {"state": "DONE"}, ["lease_id"]),
    ("complete", {"lease_id": 5, "state": "DONE"}, ["lease_id"]),
    ("complete", {"state": "COMPLETED"}, ["state"]),
    ("complete", {"state": ["DONE"]}, ["state"]),
    ("complete", {}, ["state"]),
    ("complete", {"state": "DONE", "exit_code": 2**31}, ["exit_code"]),
    ("complete", {"state": "DONE", "exit_code": "0"}, ["exit_code"]),
    ("complete", {"state": "FAILED", "error": {"a": 1}}, ["error"]),
    ("complete", {"state": "DONE", "artifacts": [1]}, ["artifacts"]),
    ("complete", {"state": "DONE", "worker": "x"}, ["worker"]),
    ("heartbeat", {"progress": 1.01}, ["progress"]),
    ("heartbeat", {"progress": -0.1}, ["progress"]),
    ("heartbeat", {"progress": "0.5"}, ["progress"]),
    ("heartbeat", {"message": 5}, ["message"]),
    ("heartbeat", {"tokens_used": -1}, ["tokens_used"]),
    ("heartbeat", {"tokens_used": 1.5}, ["tokens_used"]),
    ("heartbeat", {"logs": {}}, ["logs"]),
    ("heartbeat", {"logs": ["line"]}, ["logs", 0]),
    ("heartbeat", {"logs": [{"message": "x"}, {"level": "INFO"}]}, ["logs", 1, "message"]),
    ("heartbeat", {"logs": [{"message": "x", "level": "x" * 17}]}, ["logs", 0, "level"]),
    ("heartbeat", {"logs": [{"message": "x", "at": "now"}]}, ["logs", 0, "at"]),
    ("heartbeat", {"logs": [{"message": "x", "colour": "red"}]}, ["logs", 0, "colour"]),
    ("heartbeat", {"logs": [{"message": "x"}] * 1001}, ["logs"]),
    ("heartbeat", {"lease_expires_at": "2030-01-01T00:00:00Z"}, ["lease_expires_at"]),
    ("release", {"hand_back": "yes"}, ["hand_back"]),
]


@pytest.mark.parametrize(("endpoint", "fields", "loc"), BAD_INPUT, ids=str)
def test_bad_input_names_the_field_and_changes_nothing(
    remote: RemoteClient, endpoint: str, fields: dict[str, Any], loc: list[Any]
) -> None:
    path, body = endpoint, fields
    if endpoint in ("start", "complete", "heartbeat", "release"):
        lease = remote.start_new_job()
        offered = remote.submit()
        remote.poll()
        path = {
            "start": f"{QUEUE}/jobs/{offered}/start",
            "complete": f"{QUEUE}/jobs/{lease['job_id']}/complete",
            "heartbeat": f"{LEASE}/{lease['lease_id']}/heartbeat",
            "release": f"{LEASE}/{lease['lease_id']}/release",
        }[endpoint]
        if endpoint == "complete" and loc != ["lease_id"]:
            body = {"lease_id": lease["lease_id"], **fields}
    before = {model: rows for model, rows in dump_tables().items() if model != "ApiToken"}
    refused = remote.api.client.post(
        f"/api{path}", json.dumps(body), content_type="application/json", headers=remote.api.headers
    )
    assert read_error_locations(refused) == [["body", *loc]]
    assert {model: rows for model, rows in dump_tables().items() if model != "ApiToken"} == before


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"{QUEUE}/dispatchable?addon_id=", "addon_id"),
        (f"{QUEUE}/dispatchable?limit=0", "limit"),
        (f"{QUEUE}/dispatchable?limit=501", "limit"),
        (f"{QUEUE}/dispatchable?limit=-1", "limit"),
        (f"{QUEUE}/dispatchable?limit=x", "limit"),
        (f"{QUEUE}/dispatchable?cursor=x", "cursor"),
        (f"{QUEUE}/dispatchable?tenant=acme", "tenant"),
        (f"{QUEUE}/jobs?state=PENDING", "state"),
        (f"{QUEUE}/jobs?state=COMPLETED", "state"),
        (f"{QUEUE}/jobs?status=QUEUED", "status"),
        (f"{QUEUE}/jobs?limit=0", "limit"),
        (f"{QUEUE}/jobs?cursor=x", "cursor"),
    ],
)
def test_bad_parameters_are_named(remote: RemoteClient, path: str, name: str) -> None:
    assert read_error_locations(remote.api.get(path)) == [["query", name]]
