"""Every reason that keeps a job from running is found, and says by what, since when and by whom."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone, translation

from jobs.actors import Actor, ActorKind
from jobs.engine import promoter
from jobs.engine.selection.limits import sync_limits
from jobs.explain import Explanation, explain
from jobs.models import Gate, Job, JobEvent, Lease, Worker
from jobs.registry import registry
from jobs.services import groups, limits, targets
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory, LeaseFactory, WorkerFactory
from tests.support import executor
from tests.support.api_client import ApiClient
from tests.support.commands import call

pytestmark = pytest.mark.django_db

ANNA = Actor(ActorKind.USER, "anna")
TYPE = "sample.noop"


@pytest.fixture(autouse=True)
def at_work(settings: Any) -> Worker:
    """A worker that serves everything, and no limits but those a test sets."""
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "LIMITS": {"global": None}}
    sync_limits()
    return WorkerFactory.create(slots=2, serves={"types": registry.local_names(), "resources": None, "tenant": None})


def job(**fields: Any) -> Job:
    return job_services.enqueue(TYPE, **fields)


def codes(job: Job) -> list[str]:
    promoter.promote()
    return [reason.code for reason in explain(job.pk).reasons]


def only(job: Job) -> Any:
    promoter.promote()
    (reason,) = explain(job.pk).reasons
    return reason


def test_a_future_start_is_said_with_its_time() -> None:
    later = timezone.now() + timedelta(hours=1)
    reason = only(job(not_before=later))
    assert (reason.code, reason.until) == ("not_before", later)


def test_a_retry_in_backoff_names_the_failure_it_follows() -> None:
    failed = executor.fail(executor.claim(job()), retry_in=600)
    reason = only(Job.objects.get(retry_of=failed))
    assert (reason.code, reason.blocking_job_id) == ("backoff", failed.pk)


def test_a_held_job_says_who_holds_it() -> None:
    reason = only(job_services.enqueue(TYPE, hold=True, actor=ANNA))
    assert (reason.code, reason.by) == ("held", "anna")
    assert reason.since is not None


def test_a_place_of_a_sequence_names_the_place_before_it() -> None:
    made = groups.create([{"job_type": TYPE}] * 3, mode="sequential")
    first, _second, third = groups.get_latest_attempts(made.pk)
    reason = only(third)
    assert (reason.code, reason.blocking_job_id) == ("predecessor", first.pk)
    assert "is QUEUED" in reason.message


def test_a_paused_job_says_since_when_and_by_whom() -> None:
    paused = job_services.pause(job().pk, actor=ANNA, reason="wait for the proof")
    reason = only(paused)
    assert (reason.code, reason.by) == ("paused", "anna")
    assert "wait for the proof" in reason.message


def test_a_busy_target_names_the_job_that_is_at_work() -> None:
    first, second = job(target="book-1"), job(target="book-1")
    executor.claim(first)
    reason = only(second)
    assert (reason.code, reason.blocking_job_id) == ("target_busy", first.pk)


def test_a_job_behind_another_one_in_its_lane_says_who_goes_first() -> None:
    first, second = job(target="book-1"), job(target="book-1")
    reason = only(second)
    assert (reason.code, reason.blocking_job_id) == ("target_busy", first.pk)
    assert codes(first) == []


@pytest.mark.parametrize("how", ["paused", "failed"])
def test_a_blocked_target_names_the_job_its_state_since_when_and_by_whom(how: str) -> None:
    first, second = job(target="book-1"), job(target="book-1")
    if how == "paused":
        job_services.pause(first.pk, actor=ANNA, reason="proof")
    else:
        executor.fail(executor.claim(first))
    reason = only(second)
    assert (reason.code, reason.blocking_job_id) == ("target_blocked", first.pk)
    assert f"is {how.upper()}" in reason.message
    assert ("by anna" if how == "paused" else f"by {executor.NAME}") in reason.message
    assert reason.since is not None


def test_a_paused_target_says_who_shut_it_and_why() -> None:
    waiting = job(target="book-1")
    targets.pause("book-1", actor=ANNA, reason="reindexing")
    reason = only(waiting)
    assert (reason.code, reason.by) == ("target_paused", "anna")
    assert "reindexing" in reason.message


@pytest.mark.parametrize(
    ("scope", "key"), [("global", ""), ("job_type", TYPE), ("resource", "gpu"), ("tenant", "default")]
)
def test_a_full_limit_says_how_full(scope: str, key: str) -> None:
    limits.set_maximum(scope, key, maximum=1)
    first, second = job(resource="gpu"), job(resource="gpu")
    executor.claim(first)
    reason = only(second)
    assert (reason.code, "1 of 1" in reason.message) == ("limit", True)


@pytest.mark.parametrize(
    ("scope", "key", "english", "german"),
    [
        ("job_type", TYPE, f"the limit of job type {TYPE} is reached", f"die Grenze „Jobtyp {TYPE}“ ist ausgeschöpft"),
        ("resource", "GPU", "the limit of resource GPU is reached", "die Grenze „Ressource GPU“ ist ausgeschöpft"),
        (
            "tenant",
            "default",
            "the limit of tenant default is reached",
            "die Grenze „Mandant default“ ist ausgeschöpft",
        ),
    ],
)
def test_a_limit_is_named_as_its_language_writes_it(scope: str, key: str, english: str, german: str) -> None:
    limits.set_maximum(scope, key, maximum=1)
    first, second = job(resource="GPU"), job(resource="GPU")
    executor.claim(first)
    assert english in only(second).message
    with translation.override("de"):
        assert german in only(second).message


def test_a_limit_of_others_is_no_reason() -> None:
    limits.set_maximum("job_type", "sample.add", maximum=1)
    limits.pause("resource", "gpu")
    assert codes(job()) == []


def test_a_paused_scope_says_who_paused_it() -> None:
    waiting = job()
    limits.pause("job_type", TYPE, actor=ANNA, reason="provider is down")
    reason = only(waiting)
    assert (reason.code, reason.by) == ("scope_paused", "anna")
    assert "provider is down" in reason.message


def test_a_direct_call_that_waits_for_the_same_limit_is_a_reservation() -> None:
    limits.set_maximum("global", "", maximum=1)
    waiting = job()
    soon = timezone.now() + timedelta(minutes=1)
    lease: Lease = LeaseFactory.create(kind="DIRECT", job_type="sample.add", granted_at=None, expires_at=soon)
    reason = only(waiting)
    assert (reason.code, reason.by) == ("reservation", lease.owner)


def test_a_denied_admission_is_named_as_it_was_said() -> None:
    denied = job()
    later = timezone.now() + timedelta(minutes=1)
    Job.objects.filter(pk=denied.pk).update(recheck_at=later, gate=Gate.TIME)
    JobEvent.objects.create(job=denied, kind="DENIED", actor_kind="scheduler", reason="the machine is busy")
    reason = only(denied)
    assert (reason.code, reason.until) == ("admission_denied", later)
    assert "the machine is busy" in reason.message


def test_an_offered_job_says_until_when() -> None:
    offered = JobFactory.create(dispatching=True)
    reason = only(offered)
    assert (reason.code, reason.until) == ("dispatching", offered.reserved_until)


@pytest.mark.parametrize(
    "changes",
    [
        {"serves": {"types": ["sample.add"], "resources": None, "tenant": None}},
        {"serves": {"types": [TYPE], "resources": ["gpu"], "tenant": None}},
        {"serves": {"types": [TYPE], "resources": None, "tenant": "acme"}},
        {"state": "QUIET"},
        {"request": "QUIET"},
        {"heartbeat_at": timezone.now() - timedelta(hours=1)},
    ],
)
def test_without_a_worker_that_takes_it_a_job_waits_for_one(changes: dict[str, Any]) -> None:
    Worker.objects.update(**changes)
    assert only(job()).code == "no_worker"


def test_all_reasons_are_told_and_the_first_makes_the_sentence() -> None:
    Worker.objects.all().delete()
    job_services.pause(job(target="book-1").pk)
    limits.pause("global", "", reason="night")
    waiting = job(target="book-1", not_before=timezone.now() + timedelta(hours=1))
    found = explain(waiting.pk)
    assert [reason.code for reason in found.reasons] == ["not_before", "target_blocked", "scope_paused", "no_worker"]
    assert "and 3 more reasons" in found.summary


@pytest.mark.parametrize("status", [Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SKIPPED])
def test_what_runs_or_has_ended_has_no_reasons(status: Status) -> None:
    found = explain(JobFactory.create(**{status.lower(): True}).pk)
    assert (found.reasons, found.ahead, found.predicted_start_at) == ([], None, None)
    assert found.summary == f"It is {status.lower()}."


def test_a_state_is_named_as_its_language_writes_it() -> None:
    with translation.override("de"):
        assert explain(JobFactory.create(failed=True).pk).summary == "Zustand: Fehlgeschlagen."


def place(found: Explanation) -> int | None:
    return found.ahead


def test_a_jobs_place_is_the_number_of_those_that_go_first() -> None:
    low, high, second_low = job(priority="LOW"), job(priority="HIGH"), job(priority="LOW")
    assert [place(explain(job.pk)) for job in (high, low, second_low)] == [0, 1, 2]


def test_a_place_in_a_lane_counts_the_lane_alone() -> None:
    job(priority="URGENT")
    first, second = job(target="book-1"), job(target="book-1")
    assert [place(explain(job.pk)) for job in (first, second)] == [0, 1]


def test_the_terminal_says_the_same() -> None:
    waiting = job_services.pause(job().pk, actor=ANNA)
    assert call("jobs", "explain", waiting.pk, "--json").json == explain(waiting.pk).document()
    assert "it is paused" in call("jobs", "explain", waiting.pk).out
    assert "it is paused" in call("jobs", "show", waiting.pk).out
    assert call("jobs", "explain", "nonsense").code == 1


def test_a_viewer_of_one_tenant_sees_nothing_of_other_tenants() -> None:
    limits.set_maximum("global", "", maximum=1)
    waiting = job(tenant="acme")
    promoter.promote()
    soon = timezone.now() + timedelta(minutes=1)
    fields = {
        "kind": "DIRECT",
        "job_type": "sample.add",
        "granted_at": None,
        "expires_at": soon,
        "owner": "their-token",
    }
    lease: Lease = LeaseFactory.create(tenant="globex", **fields)
    (reason,) = explain(waiting.pk, viewer_tenant="acme").reasons
    assert (reason.code, reason.by, reason.since) == ("reservation", None, lease.requested_at)
    assert "sample.add" not in str(reason.document())
    assert explain(waiting.pk).reasons[0].by == "their-token"
    Lease.objects.update(tenant="acme")
    (reason,) = explain(waiting.pk, viewer_tenant="acme").reasons
    assert (reason.by, "sample.add" in reason.message) == ("their-token", True)


@pytest.mark.parametrize(
    ("scope", "key", "is_named"),
    [("global", "", False), ("job_type", TYPE, False), ("resource", "default", False), ("tenant", "acme", True)],
)
def test_a_viewer_of_one_tenant_sees_that_a_shared_limit_is_paused_but_not_by_whom(
    scope: str, key: str, is_named: bool
) -> None:
    waiting = job(tenant="acme")
    promoter.promote()
    limits.pause(scope, key, actor=ANNA, reason="customer globex is late")
    (reason,) = explain(waiting.pk, viewer_tenant="acme").reasons
    assert (reason.code, reason.since is not None) == ("scope_paused", True)
    assert ("globex" in reason.message, "anna" in reason.message, reason.by == "anna") == (is_named,) * 3
    assert explain(waiting.pk).reasons[0].by == "anna"


def test_the_api_explains_to_a_token_of_one_tenant_what_it_may_know() -> None:
    waiting = job(tenant="acme")
    promoter.promote()
    limits.pause("global", "", actor=ANNA, reason="customer globex is late")
    path = f"/jobs/{waiting.pk}/explain"
    assert "globex" not in ApiClient("read", tenant="acme").get(path).content.decode()
    assert "globex" in ApiClient("read", tenant=None).get(path).content.decode()
