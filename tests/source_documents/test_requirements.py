"""The requirements of the source documents that once were kept in part only, by their numbers; each black-box."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.source_documents.conftest import SETTINGS, Scheduler
from tests.support.webhook_receiver import respond, respond_in_turn, run_receiver
from tests.support.worker_processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
RULES = [*(f"DEC-{n:03}" for n in range(1, 13)), *(f"CON-{n:03}" for n in range(1, 5))]


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


# -- document 000


def test_033_no_ended_job_has_a_cancel_request(scheduler: Scheduler) -> None:
    cancelled = scheduler.submit("sample.sleepy", {"seconds": 60})
    scheduler.wait_for(cancelled, "RUNNING")
    scheduler.post(f"/api/jobs/{cancelled}/cancel")
    deaf = scheduler.submit("sample.work", {"seconds": 1.5})  # does not ask whether it should stop
    scheduler.wait_for(deaf, "RUNNING")
    scheduler.post(f"/api/jobs/{deaf}/cancel")
    ended = [scheduler.wait_for(job_id, "CANCELLED", "COMPLETED", "FAILED") for job_id in (cancelled, deaf)]
    assert [job["cancel_requested"] for job in ended] == [False, False]


def test_037_a_job_is_resumed_at_the_old_path_of_its_target(scheduler: Scheduler) -> None:
    job_id = scheduler.submit("sample.count", {"upto": 1000, "pace": 0.05}, target="book-37")
    scheduler.wait_for(job_id, "RUNNING")
    scheduler.post(f"/api/jobs/{job_id}/pause")
    scheduler.wait_for(job_id, "PAUSED")
    status, document = scheduler.send("POST", f"/targets/book-37/jobs/{job_id}/resume/", {})
    assert status < 300, document
    scheduler.wait_for(job_id, "RUNNING")
    scheduler.post(f"/api/jobs/{job_id}/cancel")
    assert scheduler.send("POST", f"/targets/another/jobs/{job_id}/resume/", {})[0] == 404


def test_041_a_job_is_resumed_at_its_old_path(scheduler: Scheduler) -> None:
    job_id = scheduler.submit("sample.count", {"upto": 1000, "pace": 0.05})
    scheduler.wait_for(job_id, "RUNNING")
    scheduler.post(f"/api/jobs/{job_id}/pause")
    scheduler.wait_for(job_id, "PAUSED")
    status, document = scheduler.send("POST", f"/jobs/{job_id}/resume", {})
    assert status < 300, document
    scheduler.wait_for(job_id, "RUNNING")
    scheduler.post(f"/api/jobs/{job_id}/cancel")


# -- document 002


def test_145_each_line_of_a_worker_names_it(scheduler: Scheduler) -> None:
    job_id = scheduler.submit("sample.noop")
    scheduler.wait_for(job_id, "COMPLETED")
    wait_until(lambda: f"job {job_id} (sample.noop) finished" in scheduler.product.output)
    lines = [line for line in scheduler.product.output.splitlines() if job_id in line]
    assert len(lines) >= 2
    assert all(re.search(r"\[\S+-\d+\]", line) for line in lines), lines


def test_163_who_cancels_by_the_submitted_id_is_led_to_the_latest_attempt(scheduler: Scheduler) -> None:
    job_id = scheduler.submit("sample.fail", max_retries=1)
    scheduler.wait_for(job_id, "FAILED")
    retried = scheduler.get(f"/api/jobs/{job_id}?follow=latest")
    assert retried["id"] != job_id
    refusal = scheduler.post(f"/api/jobs/{job_id}/cancel", status=409)
    assert (refusal["tail_id"], refusal["allowed"]) == (retried["id"], ["retry"])


# -- document 003


def test_184_events_keep_the_schedule_that_made_a_job_after_it_is_deleted(scheduler: Scheduler) -> None:
    name = f"nightly {uuid4()}"
    schedule = scheduler.post("/api/schedules", {"name": name, "job_type": "sample.noop", "every_sec": 1})
    made: list[Any] = []

    def has_fired() -> bool:
        fires = scheduler.get(f"/api/schedules/{schedule['id']}/fires")["items"]
        made[:] = [fire["job_id"] for fire in fires if fire["job_id"]]
        return bool(made)

    wait_until(has_fired, what=lambda: scheduler.product.output)
    status, _ = scheduler.send("DELETE", f"/api/schedules/{schedule['id']}")
    assert status == 204
    job = scheduler.get(f"/api/jobs/{made[-1]}")
    assert (job["schedule_id"], job["fire_time"] is None) == (None, False)
    (event,) = scheduler.list_events(made[-1], "SUBMITTED")
    assert event["data"]["schedule"] == {"id": schedule["id"], "name": name}


@pytest.mark.pg_only
def test_191_a_worker_does_its_work_beside_a_connection_pool_of_the_site(scheduler: Scheduler) -> None:
    """Django's pool at its default size: heartbeats and results do not wait for it."""
    worker = scheduler.fleet.start("--concurrency=4", "--tenant=pooled", settings=SETTINGS, env={"POOLED": "1"})
    made = [scheduler.submit("sample.query", {"seconds": 0.2}, tenant="pooled") for _ in range(8)]
    assert {scheduler.wait_for(job_id, "COMPLETED", "FAILED")["status"] for job_id in made} == {"COMPLETED"}
    worker.terminate()
    assert worker.wait_for_end() == 0


def test_221_every_event_is_delivered_in_the_end_and_only_requests_that_were_made_count(scheduler: Scheduler) -> None:
    """The receiver fails often enough to open the circuit; a resend by a person is tried at once and closes it."""
    with run_receiver(respond_in_turn(*[respond(500)] * 30, respond(200))) as receiver:
        hook = {"url": receiver.url, "events": ["job.completed"], "tenant": "hooks"}
        endpoint = scheduler.post("/api/webhooks", hook)["id"]
        for _ in range(6):
            scheduler.submit("sample.noop", tenant="hooks")

        def deliveries() -> list[Any]:
            return list(scheduler.get(f"/api/webhooks/{endpoint}/deliveries")["items"])

        wait_until(lambda: len(deliveries()) == 6 and any(item["attempts"] for item in deliveries()))
        wait_until(lambda: scheduler.get(f"/api/webhooks/{endpoint}")["open_until"], what=deliveries)
        assert sum(item["attempts"] for item in deliveries()) <= len(receiver.seen) + 1, deliveries()
        receiver.behaviour = respond(200)
        scheduler.post(f"/api/webhook-deliveries/{deliveries()[0]['id']}/resend")
        scheduler.post(f"/api/webhooks/{endpoint}/resend-failed")
        wait_until(lambda: {item["status"] for item in deliveries()} == {"DELIVERED"}, 60, deliveries)
        scheduler.send("DELETE", f"/api/webhooks/{endpoint}")


def test_241_old_clients_without_tokens_work_on_the_old_paths_if_the_operator_says_so(scheduler: Scheduler) -> None:
    status, created = scheduler.send("POST", "/jobs", {"job_type": "sample.noop", "params": {}}, token=None)
    assert status in (200, 201), created
    job_id = created.get("id") or created["job_id"]
    assert scheduler.send("GET", f"/jobs/{job_id}", token=None)[0] == 200
    assert scheduler.send("GET", "/jobs", token=None)[0] == 200
    assert scheduler.send("GET", "/api/jobs", token=None)[0] == 401


def test_245_missed_runs_of_schedules_are_a_metric_with_an_alert(scheduler: Scheduler) -> None:
    status, text = scheduler.send("GET", "/metrics")
    assert status == 200
    for name in ("jobs_schedules_overdue", "jobs_schedules_missed", "jobs_schedules_disabled"):
        assert re.search(rf"^{name}(?:{{.*}})? \d", text, re.M), name
        assert name in (ROOT / "docs/monitoring/alerts.yml").read_text(), name


def test_250_each_rule_has_a_unit_an_integration_and_an_error_test_with_its_id() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for rule in (name.replace("-", "_").lower() for name in RULES):
        kinds = {kind for kind in ("unit", "integration", "error") if re.search(rf"def test_{rule}_{kind}_", sources)}
        assert kinds == {"unit", "integration", "error"}, (rule, kinds)


def test_251_the_document_of_the_api_names_each_rule(scheduler: Scheduler) -> None:
    text = json.dumps(scheduler.get("/api/openapi.json"))
    assert [rule for rule in RULES if rule not in text] == []


# -- document 004


def test_266_attempts_of_an_intent_are_the_runs_that_started(scheduler: Scheduler) -> None:
    job_id = scheduler.submit_intent(max_retries=1)
    assert scheduler.get_intent(job_id)["attempts"] == 0
    lease_id = scheduler.start_intent(job_id)
    assert scheduler.get_intent(job_id)["attempts"] == 1
    retry = scheduler.complete_intent(job_id, lease_id, state="FAILED", error="no paper")["current_job_id"]
    assert (scheduler.get_intent(job_id)["attempts"], retry != job_id) == (1, True)
    lease_id = scheduler.start_intent(retry)
    assert scheduler.get_intent(job_id)["attempts"] == 2
    scheduler.complete_intent(retry, lease_id, state="DONE")
    assert scheduler.get_intent(job_id)["state"] == "DONE"


def test_270_a_deadline_alone_ends_a_job_that_has_not_started(scheduler: Scheduler) -> None:
    late = scheduler.submit(
        "sample.noop", resource="deadlines", deadline_at=in_seconds(1), not_before=in_seconds(0.5), hold=True
    )
    job = scheduler.wait_for(late, "SKIPPED")
    assert "deadline" in job["status_reason"]
    status, problem = scheduler.send("POST", "/api/jobs", {"job_type": "sample.noop", "time_sensitive": True})
    assert (status, "deadline_at" in json.dumps(problem)) == (422, True)


def test_285_who_submitted_an_intent_follows_it_by_its_id_over_a_failure(scheduler: Scheduler) -> None:
    job_id = scheduler.submit_intent(max_retries=1)
    lease_id = scheduler.start_intent(job_id)
    scheduler.complete_intent(job_id, lease_id, state="FAILED", error="no paper")
    intent = scheduler.get_intent(job_id)
    assert (intent["state"], intent["current_job_id"] != job_id) == ("QUEUED", True)
    scheduler.post(f"/api/system/scheduler/queue/jobs/{job_id}/cancel")
    assert scheduler.get_intent(job_id)["state"] == "CANCELED"


def test_293_the_event_with_which_a_job_leaves_the_queue_has_the_reason_admitted(scheduler: Scheduler) -> None:
    remote = scheduler.submit_intent()
    lease_id = scheduler.start_intent(remote)
    scheduler.complete_intent(remote, lease_id, state="DONE")
    local = scheduler.submit("sample.noop")
    scheduler.wait_for(local, "COMPLETED")
    events = [*scheduler.list_events(remote, "DISPATCHING"), *scheduler.list_events(local, "RUNNING")]
    assert [event["reason"] for event in events] == ["admitted", "admitted"]


def test_311_decisions_of_admission_are_events_with_their_reason(scheduler: Scheduler) -> None:
    """`cpu_heavy` jobs are denied here: they wait until the machine has been quiet for a day."""
    admitted = scheduler.submit("sample.noop")
    denied = scheduler.submit("sample.noop", constraints={"cpu_heavy": True})
    scheduler.wait_for(admitted, "COMPLETED")
    (event,) = scheduler.list_events(admitted, "ADMITTED")
    assert event["data"]["cost_units"] == 1
    wait_until(lambda: scheduler.list_events(denied, "DENIED"), what=lambda: scheduler.product.output)
    (event,) = scheduler.list_events(denied, "DENIED")
    assert event["reason"] == "heavy jobs wait until the machine is quiet"
    scheduler.post(f"/api/jobs/{denied}/cancel")


def test_313_the_event_of_a_start_has_its_lease(scheduler: Scheduler) -> None:
    remote = scheduler.submit_intent()
    lease_id = scheduler.start_intent(remote)
    (running,) = scheduler.list_events(remote, "RUNNING")
    assert running["data"]["lease_id"] == lease_id
    scheduler.complete_intent(remote, lease_id, state="DONE")
    local = scheduler.submit("sample.noop")
    scheduler.wait_for(local, "COMPLETED")
    (running,) = scheduler.list_events(local, "RUNNING")
    assert UUID(running["data"]["lease_id"])


def test_309_the_state_of_admission_is_a_metric(scheduler: Scheduler) -> None:
    _, text = scheduler.send("GET", "/metrics")
    for name in ("jobs_admission_state", "jobs_admission_capacity", "jobs_admission_cost_in_use"):
        assert re.search(rf"^{name}(?:{{.*}})? \d", text, re.M), name


def test_316_dispatchable_without_an_addon_offers_jobs_of_all_addons(scheduler: Scheduler) -> None:
    made = {scheduler.submit_intent(addon_id=name) for name in ("visuals", "letters")}
    offered: set[str] = set()

    def are_offered() -> bool:
        offered.update(item["job_id"] for item in scheduler.list_offers("?limit=50"))
        return made <= offered

    wait_until(are_offered)
    for job_id in made:
        scheduler.post(f"/api/system/scheduler/queue/jobs/{job_id}/cancel")
