"""Offers follow the dispatch order, lanes and limits, go to pollers, and are withdrawn if the job is not started."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.maintenance.runner import run_tasks
from jobs.engine.remote import offers
from jobs.explain import explain
from jobs.models import Gate, Job, JobEvent, Poller
from jobs.policies.concurrency import Blocked, Flow, InUse, Limit
from jobs.services import jobs as job_services
from jobs.services import limits, targets
from jobs.states import EventKind, Status
from tests.factories import SAMPLE_TYPE, JobFactory
from tests.sample_app import job_types
from tests.support.api_client import ApiClient
from tests.support.remote_client import LEASE, QUEUE, RemoteClient, get_job
from tests.support.snapshots import list_event_kinds

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types


def claim_local() -> list[Any]:
    return Claimer("local", ServedJobs((SAMPLE_TYPE,))).claim([0, 1, 2, 3], lease_sec=30)


# ---------------------------------------------------------------------- selection and order


def test_offers_follow_the_dispatch_order(remote: RemoteClient) -> None:
    low, first, second = remote.submit(priority="LOW"), remote.submit(), remote.submit()
    urgent = remote.submit(priority="URGENT")
    assert remote.poll_ids() == [urgent, first, second, low]


def test_a_poll_makes_offers_up_to_its_limit_and_repeats_earlier_ones(remote: RemoteClient) -> None:
    first, second, third = (remote.submit() for _ in range(3))
    assert remote.poll_ids(2) == [first, second]
    assert remote.poll_ids(2) == [third, first, second]
    assert remote.poll_ids(2) == [first, second, third]
    assert list_event_kinds(get_job(first)).count(EventKind.DISPATCHING) == 1


def test_an_addon_is_offered_its_own_jobs_of_its_own_tenant_only() -> None:
    visuals, sounds = (
        RemoteClient(ApiClient("work", "submit")),
        RemoteClient(ApiClient("work", "submit"), addon="sounds"),
    )
    acme = RemoteClient(ApiClient("work", "submit", tenant="acme"))
    visuals_job, sounds_job, acme_job = visuals.submit(), sounds.submit(), acme.submit()
    assert (visuals.poll_ids(), sounds.poll_ids(), acme.poll_ids()) == ([visuals_job], [sounds_job], [acme_job])


def poll_without_addon(api: ApiClient, limit: int = 10) -> list[UUID]:
    response = api.get(f"{QUEUE}/dispatchable?limit={limit}")
    assert response.status_code == 200, response.content
    return [UUID(item["job_id"]) for item in response.json()["items"]]


def test_without_an_addon_jobs_of_every_addon_are_offered_in_dispatch_order(remote: RemoteClient) -> None:
    low = remote.submit(priority="LOW")
    high = RemoteClient(remote.api, addon="sounds").submit(priority="HIGH")
    normal = remote.submit()
    of_none = JobFactory.create(remote=True, priority=90).pk
    assert poll_without_addon(remote.api, 2) == [of_none, high]
    assert poll_without_addon(remote.api, 10) == [normal, low, of_none, high]


def test_without_an_addon_a_bound_token_is_offered_jobs_of_its_addons_only() -> None:
    submitter = ApiClient("submit")
    job_ids = {name: RemoteClient(submitter, addon=name).submit() for name in ("visuals", "sounds", "payments")}
    bound = ApiClient("work", addons=["visuals", "sounds"])
    assert poll_without_addon(bound) == [job_ids["visuals"], job_ids["sounds"]]
    assert set(Poller.objects.values_list("addon_id", flat=True)) == {"visuals", "sounds"}
    assert get_job(job_ids["payments"]).status == Status.QUEUED


def test_a_bound_token_works_for_its_addons_only() -> None:
    submitter = ApiClient("submit")
    theirs = RemoteClient(ApiClient("work"), addon="payments")
    job_id = RemoteClient(submitter, addon="payments").submit(payload={"password": "p"})
    assert theirs.poll_ids() == [job_id]
    bound = RemoteClient(ApiClient("work", addons=["visuals"]), addon="payments")
    admission = {"job_type": "preview", "cost_units": 1}
    refused = [
        bound.api.get(f"{QUEUE}/dispatchable?addon_id=payments"),
        bound.try_start(job_id),
        bound.api.post(f"{LEASE}/request", {"addon_id": "payments", **admission}),
    ]
    assert [(response.status_code, response.json()["code"]) for response in refused] == [(403, "forbidden")] * 3
    assert all("visuals" in response.json()["detail"] for response in refused)
    assert b"password" not in b"".join(response.content for response in refused)
    assert bound.api.post(f"{LEASE}/request", {"addon_id": "visuals", **admission}).json()["approved"]
    own_job_id = RemoteClient(submitter).submit()
    own = RemoteClient(bound.api)
    assert own.poll_ids() == [own_job_id]
    assert own.complete(own.start(own_job_id)).json()["state"] == "DONE"
    assert theirs.start(job_id)["payload"] == {"password": "p"}


def test_a_poll_without_an_addon_is_kicked_for_all(remote: RemoteClient) -> None:
    poll_without_addon(remote.api)
    job_ids = {remote.submit(), RemoteClient(remote.api, addon="sounds").submit()}
    assert all(explain(job_id).reasons == [] for job_id in job_ids)
    assert remote.api.post(f"{QUEUE}/kick").json() == {"dispatched": 2}


def test_a_token_of_all_tenants_is_offered_those_of_all() -> None:
    one, two = (RemoteClient(ApiClient("submit", tenant=name)).submit() for name in ("acme", "globex"))
    assert RemoteClient(ApiClient("work", tenant=None)).poll_ids() == [one, two]


def test_local_jobs_are_not_offered_and_remote_ones_not_claimed(remote: RemoteClient) -> None:
    local = job_services.enqueue(SAMPLE_TYPE, {"text": "x"}, addon_id="visuals")
    remote_job_id = remote.submit()
    assert [claim.id for claim in claim_local()] == [local.pk]
    assert remote.poll_ids() == [remote_job_id]


def test_a_job_is_not_offered_before_it_is_due(remote: RemoteClient) -> None:
    later = remote.submit(earliest_start_at=(timezone.now() + timedelta(hours=1)).isoformat())
    assert remote.poll_ids() == []
    Job.objects.filter(pk=later).update(not_before=Now() - timedelta(seconds=1))
    assert remote.poll_ids() == [later]


def test_a_lane_is_offered_one_job_at_a_time_in_order(remote: RemoteClient) -> None:
    first, second, other = remote.submit(target="book-1"), remote.submit(target="book-1"), remote.submit(target="b-2")
    assert remote.poll_ids() == [first, other]
    lease = remote.start(first)
    assert remote.poll_ids() == [other]
    remote.complete(lease)
    assert remote.poll_ids() == [second, other]


def test_a_paused_lane_is_not_offered(remote: RemoteClient) -> None:
    first = remote.submit(target="book-1")
    targets.pause("book-1")
    assert remote.poll_ids() == []
    targets.unpause("book-1")
    assert remote.poll_ids() == [first]


# ---------------------------------------------------------------------- limits


def test_without_any_worker_ever_started_the_default_limit_holds(remote: RemoteClient, settings: Any) -> None:
    """DEC-011: one at a time."""
    settings.JOBSCHEDULER = {}
    first, second = remote.submit(), remote.submit()
    assert remote.poll_ids() == [first]
    lease = remote.start(first)
    assert remote.poll_ids() == []
    remote.complete(lease)
    assert remote.poll_ids() == [second]


def test_an_offer_counts_as_much_as_a_running_job(remote: RemoteClient, settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": 2}}
    job_services.enqueue(SAMPLE_TYPE, {"text": "x"}, priority="LOW")
    for _ in range(3):
        remote.submit()
    assert len(remote.poll_ids()) == 2
    assert claim_local() == []


def test_locally_running_jobs_count_against_the_limit_of_offers(remote: RemoteClient, settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": 2}}
    limits.set_maximum("global", maximum=2)
    job_services.enqueue(SAMPLE_TYPE, {"text": "x"})
    for _ in range(3):
        remote.submit()
    assert len(claim_local()) == 1
    assert len(remote.poll_ids()) == 1


@pytest.mark.parametrize(
    ("scope", "key"), [("job_type", "indexing"), ("resource", "gpu"), ("addon", "visuals"), ("tenant", "default")]
)
def test_every_scope_holds_within_one_batch_of_offers(remote: RemoteClient, scope: str, key: str) -> None:
    limits.set_maximum(scope, key, maximum=2)
    for _ in range(4):
        remote.submit(resource="gpu")
    assert len(remote.poll_ids()) == 2
    assert Job.objects.filter(status=Status.DISPATCHING).count() == 2


def test_a_paused_scope_is_offered_nothing(remote: RemoteClient) -> None:
    remote.submit()
    limits.pause("job_type", "indexing")
    assert remote.poll_ids() == []
    limits.unpause("job_type", "indexing")
    assert len(remote.poll_ids()) == 1


def test_a_job_behind_thousands_of_a_full_type_is_found(remote: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.engine.sql.candidates.WINDOW", 5)
    limits.set_maximum("job_type", "indexing", maximum=1)
    full_type = [remote.submit() for _ in range(20)]
    other = remote.submit(job_type="rendering")
    assert remote.poll_ids() == [full_type[0], other]


def test_a_tenant_behind_thousands_of_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.engine.sql.candidates.WINDOW", 5)
    busy_tenant, other_tenant = (RemoteClient(ApiClient("work", "submit", tenant=name)) for name in ("acme", "globex"))
    for _ in range(20):
        busy_tenant.submit()
    job_id = other_tenant.submit()
    assert other_tenant.poll_ids() == [job_id]


class BlockIndexing:
    """Block one job type, whatever the limits."""

    def blocked(self, flow: Flow, limits: list[Limit], in_use: InUse) -> Blocked | None:
        return Blocked(Limit("job_type", "indexing", 1), 0) if flow.job_type == "indexing" else None


def test_a_policy_of_the_host_applies_to_offers(remote: RemoteClient, settings: Any) -> None:
    settings.JOBSCHEDULER = {"CONCURRENCY_POLICY": f"{__name__}.BlockIndexing", "LIMITS": {"global": None}}
    remote.submit()
    other = remote.submit(job_type="rendering")
    assert remote.poll_ids() == [other]


# ---------------------------------------------------------------------- withdrawn offers


def expire_reservation(job_id: UUID) -> None:
    """Set the end of the reservation into the past."""
    Job.objects.filter(pk=job_id).update(reserved_until=Now() - timedelta(seconds=1))


def read_backoff(job_id: UUID) -> float:
    job = get_job(job_id)
    assert (job.status, job.gate) == (Status.QUEUED, Gate.TIME)
    assert job.recheck_at is not None
    withdrawn_at = JobEvent.objects.filter(job_id=job_id, kind=EventKind.WITHDRAWN).latest("id").at
    return float((job.recheck_at - withdrawn_at).total_seconds())


def test_an_offer_that_is_not_started_is_withdrawn_and_repeated_with_backoff(remote: RemoteClient) -> None:
    job_id = remote.submit()
    backoffs = []
    for _ in range(7):
        assert remote.poll_ids() == [job_id]
        expire_reservation(job_id)
        assert remote.poll_ids() == []
        backoffs.append(round(read_backoff(job_id)))
        Job.objects.filter(pk=job_id).update(recheck_at=Now() - timedelta(seconds=1))
    assert backoffs == [30, 60, 120, 240, 480, 600, 600]


def test_a_start_resets_the_backoff(remote: RemoteClient) -> None:
    job_id = remote.submit()
    for _ in range(3):
        remote.poll()
        expire_reservation(job_id)
        remote.poll()
        Job.objects.filter(pk=job_id).update(recheck_at=Now() - timedelta(seconds=1))
    remote.poll()
    remote.release(remote.start(job_id), hand_back=True)
    remote.poll()
    expire_reservation(job_id)
    remote.poll()
    assert round(read_backoff(job_id)) == 30


def test_a_tick_withdraws_offers_too(remote: RemoteClient) -> None:
    job_id = remote.submit()
    remote.poll()
    expire_reservation(job_id)
    assert run_tasks()["withdraw"] == 1
    assert get_job(job_id).status == Status.QUEUED
    document = remote.api.get(f"{QUEUE}/jobs/{job_id}").json()
    assert (document["state"], document["next_earliest_start_at"] is not None) == ("QUEUED", True)


def test_a_withdrawn_job_holds_its_lane_while_it_waits(remote: RemoteClient) -> None:
    first, second = remote.submit(target="book-1"), remote.submit(target="book-1")
    remote.poll()
    expire_reservation(first)
    assert remote.poll_ids() == []
    Job.objects.filter(pk=first).update(recheck_at=Now() - timedelta(seconds=1))
    assert remote.poll_ids() == [first]
    assert get_job(second).status == Status.QUEUED


def test_an_offered_job_can_be_cancelled_and_paused(remote: RemoteClient) -> None:
    cancelled, paused = remote.submit(), remote.submit()
    remote.poll()
    job_services.cancel(cancelled)
    job_services.pause(paused)
    assert remote.poll_ids() == []
    for job_id in (cancelled, paused):
        assert remote.try_start(job_id).status_code == 409


# ---------------------------------------------------------------------- kick and pollers


def test_a_kick_makes_offers_to_recent_pollers(remote: RemoteClient) -> None:
    assert remote.poll_ids(2) == []
    for _ in range(3):
        remote.submit()
    assert remote.api.post(f"{QUEUE}/kick").json() == {"dispatched": 2}
    assert remote.api.post(f"{QUEUE}/kick").json() == {"dispatched": 0}
    assert Job.objects.filter(status=Status.DISPATCHING).count() == 2


def test_a_kick_makes_no_offers_to_silent_pollers(remote: RemoteClient) -> None:
    remote.poll()
    Poller.objects.update(polled_at=Now() - timedelta(seconds=31))
    remote.submit()
    assert remote.api.post(f"{QUEUE}/kick").json() == {"dispatched": 0}


def test_a_kick_reaches_its_own_tenant_only() -> None:
    ours, theirs = (RemoteClient(ApiClient("work", "submit", "operate", tenant=name)) for name in ("acme", "globex"))
    for client in (ours, theirs):
        client.poll()
        client.submit()
    assert ours.api.post(f"{QUEUE}/kick").json() == {"dispatched": 1}
    assert set(Job.objects.filter(status=Status.DISPATCHING).values_list("tenant", flat=True)) == {"acme"}
    assert ApiClient("operate", tenant=None).post(f"{QUEUE}/kick").json() == {"dispatched": 1}


def test_a_poller_of_all_tenants_is_kicked_within_the_caller_s(remote: RemoteClient) -> None:
    RemoteClient(ApiClient("work", tenant=None)).poll()
    for tenant in ("acme", "globex"):
        RemoteClient(ApiClient("submit", tenant=tenant)).submit()
    assert ApiClient("operate", tenant="acme").post(f"{QUEUE}/kick").json() == {"dispatched": 1}


def test_a_job_without_pollers_explains_why_it_waits(remote: RemoteClient) -> None:
    job_id = remote.submit()
    (reason,) = explain(job_id).reasons
    assert (reason.code, reason.message) == ("no_worker", "no remote worker of addon visuals has polled recently")
    remote.poll()
    job_services.pause(job_id)
    job_services.resume(job_id)
    assert explain(job_id).reasons == []


def test_silent_pollers_are_deleted(remote: RemoteClient) -> None:
    remote.poll()
    offers.delete_silent_pollers()
    assert Poller.objects.count() == 1
    Poller.objects.update(polled_at=Now() - timedelta(days=2))
    offers.delete_silent_pollers()
    assert Poller.objects.count() == 0


def test_an_idle_poll_writes_nothing(remote: RemoteClient) -> None:
    remote.poll()
    with CaptureQueriesContext(connection) as captured:
        assert remote.poll() == []
    writes = [statement["sql"] for statement in captured if not statement["sql"].lstrip().startswith("SELECT")]
    assert writes == []


def test_a_tenant_has_a_bounded_number_of_pollers(remote: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "MAX_POLLERS", 2)
    for addon in ("a", "b", "c", "a"):
        RemoteClient(remote.api, addon=addon).poll()
    assert set(Poller.objects.values_list("addon_id", flat=True)) == {"a", "b"}
    unrecorded = RemoteClient(remote.api, addon="c")
    job_id = unrecorded.submit()
    assert unrecorded.poll_ids() == [job_id]  # its polls get offers all the same
