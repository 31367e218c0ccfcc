"""Every reason that keeps a job from running is found, and says by what, since when and by whom."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone, translation

from jobs import explain as explanation
from jobs.actors import PYTHON, SCHEDULER, Actor, ActorKind
from jobs.api.job_schemas import REASON_CODES
from jobs.engine import finish, lifecycle, promoter
from jobs.engine.selection.limits import sync_limits
from jobs.explain import Explanation, explain, explain_briefly
from jobs.models import GroupAction, GroupVerb, Job, Lease, Worker
from jobs.policies.admission import Approved, Candidate, Denied, Snapshot
from jobs.registry import registry
from jobs.services import groups, limits, targets, workers
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.stats import queries
from jobs.stats.ready_jobs import is_online
from jobs.time_text import format_clock
from tests.factories import JobFactory, LeaseFactory, WorkerFactory
from tests.support import executor
from tests.support.api_client import ApiClient
from tests.support.commands import call
from tests.support.remote_client import RemoteClient

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


def test_the_api_documents_every_code_of_a_reason() -> None:
    sources = Path(explanation.__file__).parent.glob("*.py")
    assert {code for source in sources for code in re.findall(r'Reason\("(\w+)"', source.read_text())} == {
        *REASON_CODES
    }


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
    assert ("is queued" in reason.message, str(first.pk) in reason.message) == (True, True)
    assert "place 1 of its group" in reason.message  # as on the group's page


def test_a_member_that_waits_for_an_action_on_its_group_alone_says_so() -> None:
    """Of a large group, an action may take a while; where it fails, an operator asks why nothing starts."""
    item = {"job_type": TYPE}
    group = groups.create([item], then=item)
    GroupAction.objects.create(group=group, verb=GroupVerb.CANCEL, actor_kind="USER")
    executor.complete(executor.claim(group.jobs.get(group_index=0)))
    (final,) = group.jobs.filter(status=Status.PENDING)
    assert explain(final.pk).summary == "Waiting for the end of an action on its group"


def test_a_paused_job_says_since_when_and_by_whom() -> None:
    paused = job_services.pause(job().pk, actor=ANNA, reason="wait for the proof")
    reason = only(paused)
    assert (reason.code, reason.by) == ("paused", "anna")
    assert "wait for the proof" in reason.message


def test_a_job_that_was_paused_while_it_ran_names_the_person_and_not_the_worker() -> None:
    running, behind = executor.claim(job(target="book-1")), job(target="book-1")
    job_services.pause(running.pk, actor=ANNA)
    assert running.lease_token is not None
    finish.stop(running.pk, running.lease_token, actor=executor.WORKER)
    reason = only(running)
    assert (reason.code, reason.by) == ("paused", "anna")
    assert ("by anna" in reason.message, executor.NAME in reason.message) == (True, False)
    blocked = only(behind)
    assert (blocked.code, blocked.by, "by anna" in blocked.message) == ("target_blocked", "anna", True)


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


@pytest.mark.parametrize("target", [None, "book-1"])
def test_a_job_that_was_paused_while_it_ran_names_who_asked_and_not_its_worker(target: str | None) -> None:
    paused = executor.claim(job(target=target))
    job_services.pause(paused.pk, actor=ANNA)
    finish.stop(paused.pk, paused.lease_token, actor=executor.WORKER)
    reason = only(paused)
    assert (reason.code, reason.by) == ("paused", "anna")
    assert "by anna" in reason.message
    if target is not None:
        assert "by anna" in only(job(target=target)).message


@pytest.mark.parametrize("how", ["paused", "failed"])
def test_a_blocked_target_names_the_job_its_state_since_when_and_by_whom(how: str) -> None:
    first, second = job(target="book-1"), job(target="book-1")
    if how == "paused":
        job_services.pause(first.pk, actor=ANNA, reason="proof")
    else:
        executor.fail(executor.claim(first))
    reason = only(second)
    assert (reason.code, reason.blocking_job_id) == ("target_blocked", first.pk)
    assert (f"{first.pk} failed at " if how == "failed" else "was paused by anna at ") in reason.message
    assert reason.by == ("anna" if how == "paused" else executor.NAME)
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
        ("job_type", TYPE, f"limit of job type {TYPE} reached", f"Jobtyp {TYPE}"),
        ("resource", "GPU", "limit of resource GPU reached", "Ressource GPU"),
        (
            "tenant",
            "default",
            "limit of tenant default reached",
            "Mandant default",
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


class Refusing:
    def decide(self, job: Candidate, snapshot: Snapshot) -> Approved | Denied:
        return Denied("the machine is busy", 5.0) if job.cost_units > 50 else Approved()


def use_policy(settings: Any, policy: str) -> None:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "ADMISSION_POLICY": policy}


def test_a_job_that_admission_denied_is_denied_until_it_is_admitted(settings: Any) -> None:
    """Also in between: between the time of the next check and the check itself."""
    use_policy(settings, f"{__name__}.Refusing")
    denied, admitted = job(cost_units=60), job()
    assert executor.claim_next() == admitted
    reason = only(denied)
    assert (reason.code, reason.until) == ("admission_denied", Job.objects.get(pk=denied.pk).recheck_at)
    assert "the machine is busy" in reason.message
    assert reason.since is not None
    Job.objects.filter(pk=denied.pk).update(recheck_at=timezone.now() - timedelta(seconds=1))
    again = only(denied)
    assert (again.code, again.message, again.until) == ("admission_denied", reason.message, None)
    assert explain(denied.pk).predicted_start_at is None
    assert explain_briefly([Job.objects.get(pk=denied.pk)]) == {denied.pk: reason.message}
    use_policy(settings, "jobs.policies.admission.Open")
    assert codes(denied) == []


def test_a_remote_job_that_was_denied_is_denied_between_polls(settings: Any) -> None:
    use_policy(settings, f"{__name__}.Refusing")
    remote = RemoteClient()
    denied = remote.submit(cost_units=60)
    assert remote.poll_ids() == []
    Job.objects.filter(pk=denied).update(recheck_at=timezone.now() - timedelta(seconds=1))
    assert [reason.code for reason in explain(denied).reasons] == ["admission_denied"]


def test_a_remote_job_that_was_not_started_in_time_says_when_it_is_offered_again() -> None:
    remote = RemoteClient()
    waiting = remote.submit()
    assert explain(waiting).reasons[0].code == "no_worker"
    assert remote.poll_ids() == [waiting]
    lifecycle.withdraw(waiting, actor=SCHEDULER, retry_after_sec=60)
    (reason,) = explain(waiting).reasons
    assert (reason.code, reason.until) == ("backoff", Job.objects.get(pk=waiting).recheck_at)
    second = remote.submit()
    assert (explain(second).reasons, explain(second).predicted_start_at) == ([], None)
    assert [reason.code for reason in explain(remote.submit()).reasons] == ["queue"]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"request": "QUIET"}, f"all workers that handle {TYPE} are draining"),
        ({"state": "QUIET"}, f"all workers that handle {TYPE} are draining"),
        ({"state": "STOPPED"}, "no worker is running"),
        ({"heartbeat_at": timezone.now() - timedelta(hours=1)}, "no worker is running"),
        ({"serves": {"types": ["sample.add"]}}, f"no running worker handles {TYPE}"),
        ({"serves": {"types": ["sample.add"]}, "request": "QUIET"}, f"no running worker handles {TYPE}"),
    ],
)
def test_a_missing_worker_is_not_a_draining_one(changes: dict[str, Any], message: str) -> None:
    waiting = job()
    Worker.objects.update(**changes)
    assert only(waiting).message == message
    assert explain_briefly([waiting]) == {waiting.pk: message}


def test_a_job_in_the_queue_has_its_number_and_the_first_one_a_free_slot() -> None:
    first, _second, third = job(), job(), job()
    promoter.promote()
    assert explain(first.pk).summary == "Next in line; a slot is free."
    assert explain(third.pk).summary == "Number 3 in the queue"


@pytest.mark.parametrize(
    ("actor", "shown"),
    [
        (ANNA, "anna"),
        (Actor(ActorKind.CLI, "root"), "root (command line)"),
        (Actor(ActorKind.TOKEN, "ci"), "ci (API token)"),
        (SCHEDULER, "scheduler"),
        (PYTHON, "Python code"),
    ],
)
def test_who_paused_a_job_has_a_name_and_a_time(actor: Actor, shown: str) -> None:
    paused = job_services.pause(job().pk, actor=actor, reason="disk full")
    assert explain(paused.pk).summary == f"Paused by {shown} at {format_clock(timezone.now())}: disk full"


def test_all_reasons_are_listed_and_the_first_is_the_summary() -> None:
    Worker.objects.all().delete()
    job_services.pause(job(target="book-1").pk)
    limits.pause("global", "", reason="night")
    waiting = job(target="book-1", not_before=timezone.now() + timedelta(hours=1))
    found = explain(waiting.pk)
    assert [reason.code for reason in found.reasons] == ["target_blocked", "scope_paused", "no_worker", "not_before"]
    assert found.summary.startswith("Target book-1 is blocked")
    assert "blocked" in explain_briefly([Job.objects.get(pk=waiting.pk)])[waiting.pk]


def test_what_passes_by_itself_is_told_as_time_limit_slots_queue(at_work: Worker) -> None:
    limits.set_maximum("global", "", maximum=2)
    for _ in range(4):
        job()
    executor.claim_in_slots(at_work, 2)
    last = Job.objects.queued().order_by("-pk")[0]
    assert codes(last) == ["limit", "no_slot", "queue"]
    job_services.update(last.pk, {"not_before": timezone.now() + timedelta(hours=1)})
    assert codes(last) == ["not_before", "limit", "no_slot"]
    limits.pause("job_type", TYPE)
    assert codes(last) == ["scope_paused", "not_before", "limit", "no_slot"]


def test_busy_slots_are_those_of_the_workers_that_handle_it(at_work: Worker) -> None:
    """Counted by the jobs that run, not by the last heartbeat."""
    _first, second, third = job(), job(), job()
    executor.claim_in_slots(at_work, 1)
    assert (codes(second), codes(third)) == ([], ["queue"])
    executor.claim_in_slots(at_work, 1)
    reason = only(third)
    assert (reason.code, reason.message) == ("no_slot", "no free slot: 2 of 2 busy")
    other = WorkerFactory.create(serves={"types": ["sample.add"], "resources": None, "tenant": None})
    assert codes(third) == ["no_slot"]
    Worker.objects.filter(pk=other.pk).update(serves=at_work.serves)
    assert codes(third) == []


def test_a_worker_whose_slots_are_all_stuck_handles_nothing(at_work: Worker) -> None:
    Worker.objects.update(stuck=2)
    assert only(job()).code == "no_worker"


@pytest.mark.parametrize("status", [Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SKIPPED])
def test_what_runs_or_has_ended_has_no_reasons(status: Status) -> None:
    found = explain(JobFactory.create(**{status.lower(): True}).pk)
    assert (found.reasons, found.ahead, found.predicted_start_at) == ([], None, None)
    assert found.summary == status.capitalize()


def test_a_state_is_named_as_its_language_writes_it() -> None:
    with translation.override("de"):
        assert explain(JobFactory.create(failed=True).pk).summary == "Fehlgeschlagen"


def place(found: Explanation) -> int | None:
    return found.ahead


def test_a_jobs_place_is_the_number_of_those_that_go_first() -> None:
    low, high, second_low = job(priority="LOW"), job(priority="HIGH"), job(priority="LOW")
    assert [place(explain(job.pk)) for job in (high, low, second_low)] == [0, 1, 2]


def test_a_place_in_a_lane_counts_the_lane_and_the_queue() -> None:
    job(priority="URGENT")
    job(target="book-2")
    first, second = job(target="book-1"), job(target="book-1")
    assert [place(explain(job.pk)) for job in (first, second)] == [1, 2]
    promoter.promote()
    assert [place(explain(job.pk)) for job in (first, second)] == [2, 3]


def test_the_terminal_says_the_same() -> None:
    waiting = job_services.pause(job().pk, actor=ANNA)
    assert call("jobs", "explain", waiting.pk, "--json").json == explain(waiting.pk).document()
    assert "Paused by anna" in call("jobs", "explain", waiting.pk).out
    assert "Paused by anna" in call("jobs", "show", waiting.pk).out
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


def test_an_idle_worker_is_missing_nowhere_between_its_heartbeats(at_work: Worker, settings: Any) -> None:
    """It writes its row every 5 s, whatever its leases are."""
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "HEARTBEAT_SEC": 1, "LEASE_SEC": 4}
    now = timezone.now()
    at_work.heartbeat_at = now - timedelta(seconds=9)
    at_work.save()
    assert "no_worker" not in {reason.code for reason in explain(JobFactory.create(job_type=TYPE).pk).reasons}
    assert (is_online(at_work, now), workers.is_alive(at_work), workers.has_running_worker()) == (True, True, True)
    assert queries.count_workers().states["RUNNING"] == 1
    at_work.heartbeat_at = now - timedelta(seconds=16)
    at_work.save()
    assert explain(JobFactory.create(job_type=TYPE).pk).reasons[0].code == "no_worker"
    assert (is_online(at_work, now), workers.is_alive(at_work), workers.has_running_worker()) == (False, False, False)
    assert queries.count_workers().states["RUNNING"] == 0
