"""Unique jobs: while one waits, or lives, a second submission returns it, or replaces its params and its time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import job
from jobs.errors import IdempotencyKeyReused, InvalidInput, UniqueKeyTaken
from jobs.models import Gate, Job
from jobs.registry import registry
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.testing import inline
from jobscheduler.api import api
from tests.factories import JobFactory, JobTemplateFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.commands import call
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

pytestmark = pytest.mark.django_db

TYPE = job_types.anything.name
UNTIL = pytest.mark.parametrize("until", ["start", "end"])


def submit(params: dict[str, Any] | None = None, **fields: Any) -> job_services.SubmitResult:
    return job_services.submit({"job_type": TYPE, "params": params or {}, "unique_key": "k", **fields})


@UNTIL
def test_a_second_submission_returns_the_waiting_job(until: str) -> None:
    first = submit({"a": 1}, unique_until=until)
    before = dump_tables()
    second = submit({"a": 2}, unique_until=until)
    assert (first.created, second.created, second.job.pk) == (True, False, first.job.pk)
    assert dump_tables() == before


def test_until_the_start_the_next_may_wait_while_one_runs() -> None:
    running = executor.claim(submit().job)
    second = submit()
    assert second.created
    assert submit().job.pk == second.job.pk
    executor.complete(running)
    executor.claim(second.job)


def test_until_the_end_a_running_job_is_returned() -> None:
    running = executor.claim(submit(unique_until="end").job)
    assert submit(unique_until="end").job.pk == running.pk
    executor.complete(running)
    assert submit(unique_until="end").created


@UNTIL
@pytest.mark.parametrize("status", [Status.PENDING, Status.PAUSED])
def test_a_job_on_hold_or_paused_waits(until: str, status: Status) -> None:
    waiting = submit(unique_until=until, hold=status == Status.PENDING).job
    if status == Status.PAUSED:
        job_services.pause(waiting.pk)
    assert submit(unique_until=until).job.pk == waiting.pk
    job_services.cancel(waiting.pk)
    assert submit(unique_until=until).created


def test_a_job_that_was_handed_back_waits_beside_the_next() -> None:
    from jobs.engine import finish

    running = executor.claim(submit().job)
    second = submit().job
    assert running.lease_token is not None
    finish.hand_back(running.pk, running.lease_token, actor=executor.WORKER, reason="shutdown")
    assert Job.objects.filter(status=Status.QUEUED, unique_key="k").count() == 2
    assert submit().job.pk == second.pk


@UNTIL
def test_a_retry_carries_the_key_only_until_the_end(until: str) -> None:
    executor.fail(executor.claim(submit(unique_until=until).job), retry_in=10)
    retry = Job.objects.get(retry_of__isnull=False)
    assert (retry.unique_key, retry.unique_until) == (("k", "end") if until == "end" else (None, None))
    again = submit(unique_until=until)
    assert (again.created, again.job.pk == retry.pk) == ((False, True) if until == "end" else (True, False))


@UNTIL
@pytest.mark.parametrize("action", ["retry", "resume"])
def test_a_manual_retry_that_conflicts_is_refused_with_the_id(until: str, action: str) -> None:
    failed = executor.fail(executor.claim(submit(unique_until=until).job))
    holder = submit(unique_until=until).job
    apply = getattr(job_services, action)
    if until == "start":
        assert apply(failed.pk).retry_of_id == failed.pk
        return
    before = dump_tables()
    with pytest.raises(UniqueKeyTaken, match=str(holder.pk)) as refused:
        apply(failed.pk)
    assert refused.value.holder_id == holder.pk
    assert action not in refused.value.allowed
    assert dump_tables() == before
    response = ApiClient("operate", "read").post(f"/jobs/{failed.pk}/{action}")
    assert response.status_code == 409
    assert (response.json()["code"], response.json()["job_id"]) == ("unique_key_taken", str(holder.pk))
    job_services.cancel(holder.pk)
    assert apply(failed.pk).unique_key == "k"


@UNTIL
@pytest.mark.parametrize("action", ["retry", "resume"])
def test_a_dry_run_knows_that_of_several_failures_with_one_key_one_is_retried(until: str, action: str) -> None:
    for _ in range(3):
        executor.fail(executor.claim(submit(unique_until=until).job))
    arguments = ("jobs", action, "--status=FAILED", "--json")
    dry_run, real_run = call(*arguments, "--dry-run"), call(*arguments)
    assert len(real_run.json["changed"]) == (1 if until == "end" else 3)
    assert dry_run.json["changed"] == real_run.json["changed"]
    assert [len(group["ids"]) for group in dry_run.json["skipped"]] == ([2] if until == "end" else [])


@UNTIL
def test_replace_gives_the_waiting_job_new_params_and_a_new_time(until: str) -> None:
    first = submit({"a": 1}, unique_until=until).job
    later = timezone.now() + timedelta(hours=1)
    second = submit({"b": 2}, unique_until=until, on_conflict="replace", not_before=later)
    assert (second.created, second.job.pk, second.job.params) == (False, first.pk, {"b": 2})
    assert (second.job.not_before, second.job.gate) == (later, Gate.TIME)
    event = list_events(first)[-1]
    assert (event.kind, event.data["fields"]) == ("UPDATED", ["not_before", "params"])
    assert (event.data["old"]["params"], event.data["new"]["params"]) == ({"a": 1}, {"b": 2})
    third = submit({"b": 3}, unique_until=until, on_conflict="replace").job
    assert (third.pk, third.not_before, third.gate) == (first.pk, None, Gate.READY)


def test_replace_leaves_a_job_that_was_dispatched_as_it_is() -> None:
    running = executor.claim(submit({"a": 1}, unique_until="end").job)
    again = submit({"a": 2}, unique_until="end", on_conflict="replace")
    assert (again.created, again.job.pk, again.job.params) == (False, running.pk, {"a": 1})
    assert "UPDATED" not in list_event_kinds(running)
    executor.complete(running)


def test_replace_leaves_a_retry_its_params_its_checkpoint_and_its_delay() -> None:
    running = executor.claim(submit({"a": 1}, unique_until="end").job)
    Job.objects.filter(pk=running.pk).update(checkpoint="page 300 of a")
    executor.fail(running, retry_in=3600)
    retry = running.latest
    again = submit({"a": 2}, unique_until="end", on_conflict="replace")
    assert (again.created, again.job.pk, again.job.params) == (False, retry.pk, {"a": 1})
    assert (again.job.checkpoint, again.job.not_before) == ("page 300 of a", retry.not_before)


def test_replace_checks_the_params_and_the_times() -> None:
    held = submit({"a": 1}, deadline_at=timezone.now() + timedelta(hours=1)).job
    with pytest.raises(InvalidInput, match="deadline_at"):
        submit({"a": 2}, on_conflict="replace", not_before=timezone.now() + timedelta(hours=2))
    held.refresh_from_db()
    assert held.params == {"a": 1}


def test_the_idempotency_key_is_judged_first() -> None:
    first = submit({"a": 1}, idempotency_key="i").job
    executor.complete(executor.claim(first))
    second = submit({"a": 2}).job
    assert submit({"a": 1}, idempotency_key="i").job.pk == first.pk
    with pytest.raises(IdempotencyKeyReused):
        submit({"a": 3}, idempotency_key="i")
    assert submit({"a": 3}, idempotency_key="j").job.pk == second.pk


def test_keys_are_apart_by_tenant_and_by_their_end() -> None:
    ids = {submit(tenant=tenant, unique_until=until).job.pk for tenant in ("a", "b") for until in ("start", "end")}
    assert len(ids) == 4


def test_a_key_that_a_job_of_another_type_has_is_refused() -> None:
    holder = submit().job
    with pytest.raises(UniqueKeyTaken, match=str(holder.pk)):
        job_services.enqueue("tests.nothing", unique_key="k")


@pytest.mark.parametrize("on_conflict", ["return", "replace"])
def test_a_key_that_a_job_of_another_addon_has_is_refused(on_conflict: str) -> None:
    holder = submit(addon_id="ours").job
    for addon_id in (None, "theirs"):
        with pytest.raises(UniqueKeyTaken, match=f"{holder.pk} of type {TYPE} for addon ours") as refused:
            submit({"a": 1}, addon_id=addon_id, on_conflict=on_conflict)
        assert refused.value.holder_id == holder.pk
    assert submit(addon_id="ours", on_conflict=on_conflict).job.pk == holder.pk


def test_a_bulk_whose_keys_are_taken_takes_few_statements_for_each() -> None:
    def submit_many(count: int) -> int:
        items = [{"job_type": TYPE, "unique_key": str(number)} for number in range(count)]
        job_services.enqueue_many(items)
        with CaptureQueriesContext(connection) as queries:
            job_services.enqueue_many(items)
        return len(queries)

    submit_many(1)
    assert submit_many(22) - submit_many(2) <= 20


def test_one_call_replaces_a_bounded_number_of_jobs() -> None:
    item = {"job_type": TYPE, "unique_key": "k", "on_conflict": "replace"}
    assert len(job_services.enqueue_many([item] * 200)) == 200
    response = ApiClient("submit").post("/jobs/bulk", {"jobs": [{**item, "unique_key": "j"}] * 201})
    assert read_error_locations(response) == [["body", "jobs"]]
    assert Job.objects.filter(unique_key="j").count() == 0


def test_bulk_submissions_have_unique_keys_too() -> None:
    waiting = submit({"a": 0}).job
    item = {"job_type": TYPE, "unique_key": "new"}
    items = [{"job_type": TYPE, "unique_key": "k"}, {**item, "params": {"a": 1}}, item, {"job_type": TYPE}]
    ids = job_services.enqueue_many(items)
    assert (ids[0], ids[1] == ids[2], len(set(ids))) == (waiting.pk, True, 3)
    assert Job.objects.get(pk=ids[1]).params == {"a": 1}
    replaced = [{**item, "params": {"a": n}, "on_conflict": "replace"} for n in (5, 6, 7)]
    assert set(job_services.enqueue_many(replaced)) == {ids[1]}
    assert Job.objects.get(pk=ids[1]).params == {"a": 7}


def test_the_last_of_a_bulk_wins_whatever_their_idempotency_keys() -> None:
    item = {"job_type": TYPE, "unique_key": "k", "on_conflict": "replace"}
    items = [{**item, "params": {"a": index}, "idempotency_key": key} for index, key in enumerate("bca")]
    assert len(set(job_services.enqueue_many(items))) == 1
    assert Job.objects.get().params == {"a": 2}


def test_members_of_a_group_cannot_be_unique() -> None:
    with pytest.raises(InvalidInput) as refused:
        groups.create([{"job_type": TYPE}, {"job_type": TYPE, "unique_key": "k"}])
    assert refused.value.errors[0]["loc"] == ["jobs", 1, "unique_key"]
    assert not Job.objects.exists()
    body = {"jobs": [{"job_type": TYPE, "unique_key": "k"}]}
    assert ApiClient("submit").post("/job-groups", body).status_code == 422


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"unique_key": ""}, "unique_key"),
        ({"unique_key": "a\nb"}, "unique_key"),
        ({"unique_key": "x" * 256}, "unique_key"),
        ({"unique_key": 7}, "unique_key"),
        ({"unique_until": "never"}, "unique_until"),
        ({"on_conflict": "ignore"}, "on_conflict"),
        ({"unique_key": None, "unique_until": "end"}, "unique_until"),
        ({"unique_key": None, "on_conflict": "replace"}, "on_conflict"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], loc: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        submit(**fields)
    assert refused.value.errors[0]["loc"] == [loc]
    body = {"job_type": TYPE, "unique_key": "k", **fields}
    response = ApiClient("submit").post("/jobs", body)
    assert (response.status_code, response.json()["errors"][0]["loc"]) == (422, ["body", loc])
    assert not Job.objects.exists()


@pytest.fixture
def syncing() -> Iterator[Any]:
    before = registry._handlers
    yield job("tests.syncing", unique_key="sync", unique_until="end", on_conflict="replace")(lambda n=0: None)
    registry._handlers = before


def test_a_handler_has_a_key_and_a_submission_another(syncing: Any) -> None:
    first = syncing.enqueue(n=1)
    assert (first.unique_key, first.unique_until) == ("sync", "end")
    assert syncing.enqueue(n=2).pk == first.pk
    first.refresh_from_db()
    assert first.params == {"n": 2}
    other = syncing.using(unique_key="other", unique_until="start").enqueue()
    assert (other.pk != first.pk, other.unique_until) == (True, "start")


def test_the_api_returns_the_job_that_has_the_key_with_200() -> None:
    api, body = ApiClient("submit", "read"), {"job_type": TYPE, "unique_key": "k", "unique_until": "end"}
    first, second = api.post("/jobs", body), api.post("/jobs", body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert (first.json()["unique_key"], first.json()["unique_until"]) == ("k", "end")
    assert "Idempotent-Replayed" not in second.headers


@pytest.mark.parametrize(
    ("operation", "path", "body"),
    [
        ("jobs_create", "/api/jobs", {"job_type": TYPE}),
        ("legacy_jobs_create", "/jobs", {"job_type": TYPE}),
        ("queue_submit", "/api/system/scheduler/queue/jobs/submit", {"job_type": TYPE, "addon_id": "a"}),
        ("templates_run", "/api/job-templates/{template}/run", {}),
    ],
)
def test_every_submission_returns_the_job_that_has_the_key_with_200_and_documents_it(
    operation: str, path: str, body: dict[str, Any]
) -> None:
    holder = submit(unique_until="end").job
    url = path.format(template=JobTemplateFactory.create(job_type=TYPE).pk)
    headers = ApiClient("submit", "read").headers
    data = {**body, "unique_key": "k", "unique_until": "end"}
    response = Client().post(url, data, content_type="application/json", headers=headers)
    assert response.status_code == 200
    assert str(holder.pk) in (response.json().get("id"), response.json().get("job_id"))
    paths = json.loads(json.dumps(api.get_openapi_schema(path_prefix="/api/")))["paths"].values()
    (described,) = (item for methods in paths for item in methods.values() if item["operationId"] == operation)
    assert described["responses"]["200"]["content"] == described["responses"]["201"]["content"]


def test_the_command_prints_the_id_of_the_waiting_job() -> None:
    options = ("--unique-key=k", "--unique-until=end")
    first, second = (call("enqueue", "tests.nothing", *options) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    assert call("enqueue", "tests.nothing", "--unique-until=end").code == 2


@pytest.mark.parametrize("fields", [{"unique_until": "start"}, {"unique_until": "end"}])
def test_the_database_refuses_two_even_from_raw_sql(fields: dict[str, str]) -> None:
    JobFactory.create(unique_key="k", **fields)
    with pytest.raises(IntegrityError), transaction.atomic():
        JobFactory.create(unique_key="k", **fields)
    with pytest.raises(IntegrityError), transaction.atomic():
        JobFactory.create(unique_key="other")


def test_unique_jobs_run_inline() -> None:
    with inline() as ran:
        for _ in range(2):
            submit()
    assert [done.status for done in ran] == [Status.COMPLETED] * 2
