"""May this action be applied to this job? Services, API, console and commands give the same answer in any situation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.admin.job_actions import CHANGE_PRIORITY, JOB_ACTIONS, dry_run_action
from jobs.engine import finish
from jobs.engine.facts import gather_facts, gather_facts_by_id
from jobs.errors import Conflict
from jobs.models import Job
from jobs.outcomes import Skipped
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import ACTIONS, OPERATOR_VERBS, JobFacts, LatestAttempt, Status, allowed_actions, is_repeated_stop
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.admin_pages import get_page_url
from tests.support.admin_users import log_in
from tests.support.api_client import ApiClient
from tests.support.commands import call
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

NOTE = job_types.note.name
ITEM: dict[str, Any] = {"job_type": NOTE, "params": {"text": "a"}, "max_retries": 0}
ALL_FIELDS: dict[str, Any] = {"priority": 90, "params": {"text": "b"}, "target": "book-2", "tags": ["late"]}


def _enqueue(**fields: Any) -> Job:
    return job_services.enqueue(NOTE, {"text": "a"}, **fields)


def _running() -> Job:
    return executor.claim(_enqueue(target="book-1"))


def _handed_back() -> Job:
    job = _running()
    assert job.lease_token is not None
    finish.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="worker shut down")
    return job


def _pause_running() -> Job:
    job = job_services.pause(_running().pk)
    assert job.lease_token is not None
    finish.stop(job.pk, job.lease_token, actor=executor.WORKER)
    return job


def _dispatching() -> Job:
    return executor.offer(_enqueue().pk)


def _skip_running() -> Job:
    job = _running()
    executor.finish(job, Skipped("nothing to do"))
    return job


def _fail_running() -> Job:
    return executor.fail(_running())


def _resolve_failed() -> Job:
    return job_services.resolve(_fail_running().pk)


def _backoff() -> Job:
    return executor.fail(_running(), retry_in=3600)


def _failed_twice() -> Job:
    first = _fail_running()
    executor.fail(executor.claim(job_services.retry(first.pk)))
    return first


def _chain_of_three() -> Job:
    first = _failed_twice()
    executor.claim(job_services.retry(first.pk))
    return first


def _succeeded_at_last() -> Job:
    first = _fail_running()
    executor.complete(executor.claim(job_services.retry(first.pk)))
    return first


def _retry_of(first: Job) -> Job:
    (found,) = Job.objects.filter(retry_of=first)
    return found


def _place(number: int, mode: str = "sequential", **fields: Any) -> Job:
    made = groups.create([ITEM, {**ITEM, **fields}, ITEM], mode=mode)
    return groups.get_latest_attempts(made.pk)[number]


SITUATIONS: dict[str, Callable[[], Job]] = {
    "queued": _enqueue,
    "put off": lambda: _enqueue(not_before="2099-01-01T00:00:00Z"),
    "on hold": lambda: _enqueue(hold=True),
    "dispatching": _dispatching,
    "running": _running,
    "asked to cancel": lambda: job_services.cancel(_running().pk),
    "asked to pause": lambda: job_services.pause(_running().pk),
    "handed back": _handed_back,
    "paused before it started": lambda: job_services.pause(_enqueue(target="book-1").pk),
    "paused while it ran": _pause_running,
    "completed": lambda: executor.complete(_running()),
    "skipped": _skip_running,
    "cancelled": lambda: job_services.cancel(_enqueue().pk),
    "failed": _fail_running,
    "resolved": _resolve_failed,
    "failed, its retry in backoff": _backoff,
    "retry in backoff": lambda: _retry_of(_backoff()),
    "failed, its retry queued": lambda: job_services.retry(_fail_running().pk).retry_of,  # type: ignore[return-value]
    "queued retry": lambda: job_services.retry(_fail_running().pk),
    "running retry": lambda: executor.claim(job_services.retry(_fail_running().pk)),
    "failed, its retry failed": _failed_twice,
    "failed retry": lambda: _retry_of(_failed_twice()),
    "failed, its retry completed": _succeeded_at_last,
    "first of three, the third runs": _chain_of_three,
    "second of three, the third runs": lambda: _retry_of(_chain_of_three()),
    "third of three, runs": lambda: _retry_of(_retry_of(_chain_of_three())),
    "first place of a sequence": lambda: _place(0),
    "second place of a sequence": lambda: _place(1),
    "second place of a sequence, on hold": lambda: _place(1, hold=True),
    "member of a parallel group, on hold": lambda: _place(1, "parallel", hold=True),
}
CALLS: dict[str, Callable[[Job], object]] = {
    **{verb: lambda job, verb=verb: getattr(job_services, verb)(job.pk) for verb in OPERATOR_VERBS},  # type: ignore[misc]
    "move": lambda job: job_services.move(job.pk, to="bottom"),
    "update": lambda job: job_services.update(job.pk, {"priority": 90}),
}


@contextmanager
def build_situation(situation: str) -> Iterator[Job]:
    """A job in this situation, for as long as the block lasts."""
    with transaction.atomic():
        yield Job.objects.get(pk=SITUATIONS[situation]().pk)
        transaction.set_rollback(True)


def _ask(api: ApiClient, action: str, job: Job) -> Any:
    if action == "update":
        return api.patch(f"/jobs/{job.pk}", {"priority": 90})
    return api.post(f"/jobs/{job.pk}/{action}", {"to": "bottom"} if action == "move" else {})


@pytest.mark.parametrize("situation", SITUATIONS)
def test_everybody_gives_the_same_answer_and_the_action_then_does_it(situation: str) -> None:
    api, boss = ApiClient("operate", "read"), log_in(User.objects.create_superuser("boss"))
    for action in ACTIONS:
        with build_situation(situation) as job:
            facts, before = gather_facts(job), dump_tables()
            allowed = allowed_actions(facts)
            is_allowed = action in allowed
            assert _offered_on_page(boss, job) == {
                action for action in allowed if _is_worth_offering(action, job, facts)
            }
            assert _is_foreseen(action, job) == is_allowed
            if action in OPERATOR_VERBS:
                foretold = call("jobs", action, job.pk, "--dry-run", "--json").json
                assert bool(foretold["changed"] or foretold["asked"]) == is_allowed
            assert dump_tables() == before, "looking changed something"
            if is_allowed:
                CALLS[action](job)
                continue
            with pytest.raises(Conflict) as refused:
                CALLS[action](job)
            assert dump_tables() == before, "a refusal changed something"
            problem = _ask(api, action, job)
            assert problem.status_code == 409
            document = problem.json()
            assert (document["code"], document["detail"]) == (refused.value.code, str(refused.value))
            assert document["allowed"] == refused.value.allowed == allowed


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_a_409_lists_is_then_accepted(situation: str) -> None:
    api = ApiClient("operate", "read")
    with build_situation(situation) as job:
        refused = next(action for action in ACTIONS if action not in allowed_actions(gather_facts(job)))
    for action in ACTIONS:
        with build_situation(situation) as job:
            listed = _ask(api, refused, job).json()["allowed"]
            assert (_ask(api, action, job).status_code in (200, 201)) == (action in listed)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_field_is_refused_by_its_name(situation: str) -> None:
    api = ApiClient("operate", "read")
    for field, value in ALL_FIELDS.items():
        with build_situation(situation) as job:
            answer = api.patch(f"/jobs/{job.pk}", {field: value})
            is_frozen = field in ("params", "target") and job.dispatched_at is not None
            waits = job.status in (Status.PENDING, Status.QUEUED, Status.PAUSED)
            assert (answer.status_code == 200) == (field == "tags" or (waits and not is_frozen))
            if answer.status_code == 200:
                assert getattr(Job.objects.get(pk=job.pk), field) == value
            else:
                assert answer.json()["field"] == field
                assert (answer.json()["code"] == "invalid_operation") == is_frozen


@pytest.mark.parametrize("action", sorted(set(ACTIONS) - {"retry"}))
def test_a_superseded_attempt_answers_with_the_latest_one(action: str) -> None:
    job = _chain_of_three()
    second = _retry_of(job)
    third = _retry_of(second)
    api = ApiClient("operate", "read")
    for named in (job, second):
        document = _ask(api, action, named).json()
        assert (document["status"], document["code"], document["tail_id"]) == (409, "superseded", str(third.pk))
        assert (document["state"], document["allowed"]) == ("RUNNING", [])


def test_a_job_can_be_read_by_any_id_of_its_chain() -> None:
    job = _chain_of_three()
    second = _retry_of(job)
    third = _retry_of(second)
    api = ApiClient("read")
    for named in (job, second, third):
        followed = api.get(f"/jobs/{named.pk}?follow=latest")
        assert followed.json() == api.get(f"/jobs/{third.pk}").json()
        assert api.get(f"/jobs/{named.pk}?follow=latest", **{"If-None-Match": followed["ETag"]}).status_code == 304
        assert api.get(f"/jobs/{named.pk}").json()["id"] == str(named.pk)
    assert api.get(f"/jobs/{job.pk}?follow=tail").status_code == 422
    assert api.get(f"/jobs/{uuid4()}?follow=latest").status_code == 404
    assert ApiClient("read", tenant="other").get(f"/jobs/{job.pk}?follow=latest").status_code == 404


def test_the_facts_of_many_jobs_take_as_many_queries_as_those_of_few() -> None:
    def jobs() -> list[Job]:
        found = list(Job.objects.order_by("pk"))
        with CaptureQueriesContext(connection) as captured:
            together = gather_facts_by_id(found)
        assert len(captured) <= 2
        assert together == {job.pk: gather_facts(job) for job in found}
        return found

    _chain_of_three(), _place(1)
    baseline = len(jobs())
    for number in range(5):
        latest = JobFactory.create(failed=True, target=f"lane-{number}")
        for attempt in range(2, 6):
            latest = JobFactory.create(failed=True, target=latest.target, retry_of=latest, attempt=attempt)
        _place(2)
    assert len(jobs()) > baseline + 30


def test_the_facts_follow_a_chain_to_its_end() -> None:
    job = _chain_of_three()
    second = _retry_of(job)
    third = _retry_of(second)
    latest = LatestAttempt(third.pk, Status.RUNNING)
    assert [gather_facts(item).superseded_by for item in (job, second, third)] == [latest, latest, None]
    in_backoff = _retry_of(executor.fail(third, retry_in=3600))
    latest = LatestAttempt(in_backoff.pk, Status.QUEUED, in_backoff=True)
    assert [gather_facts(item).superseded_by for item in (job, second, third)] == [latest] * 3
    assert gather_facts(in_backoff).in_backoff


@pytest.mark.parametrize("action", ["retry", "resume"])
def test_a_dry_run_over_a_whole_chain_tells_what_then_happens(action: str) -> None:
    first = _failed_twice()
    ids = [first.pk, _retry_of(first).pk]
    dry_run = dry_run_action(JOB_ACTIONS[action], ids)
    foretold = call("jobs", action, *ids, "--dry-run", "--json").json
    done = call("jobs", action, *ids, "--json").json
    assert dry_run.applicable == len(foretold["changed"]) == len(done["changed"]) == 1
    assert (foretold["changed"], foretold["skipped"]) == (done["changed"], done["skipped"])


def test_every_status_is_among_the_situations() -> None:
    found = set()
    for situation in SITUATIONS:
        with build_situation(situation) as job:
            found.add(job.status)
    assert found == set(Status)


def _offered_on_page(client: Client, job: Job) -> set[str]:
    """Return the operator actions that the job's page offers; `clone` submits another job."""
    verbs = {verb.name for verb in client.get(get_page_url(job)).context["verbs"]} - {"clone"}
    return {JOB_ACTIONS[name].verb for name in verbs}


def _is_worth_offering(action: str, job: Job, facts: JobFacts) -> bool:
    if action not in JOB_ACTIONS or is_repeated_stop(action, facts):
        return False
    if action == "retry":
        return facts.superseded_by is None  # else the page leads to the latest attempt
    return not (action == "resume" and job.status == Status.FAILED and not job.target)  # the same as a retry


def _is_foreseen(action: str, job: Job) -> bool:
    if action == "move":  # nothing foretells it
        return action in allowed_actions(gather_facts(job))
    return dry_run_action(CHANGE_PRIORITY if action == "update" else JOB_ACTIONS[action], [job.pk]).applicable == 1
