"""Admission holds for offers as for claims, and for leases without a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from jobs.engine.slots import admission_leases
from jobs.models import Job, JobEvent, Lease
from jobs.policies.admission import Approved, Candidate, Denied, Snapshot
from jobs.states import EventKind, Status
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.remote_client import LEASE, RemoteClient, get_job
from tests.support.snapshots import list_event_kinds

pytestmark = pytest.mark.django_db
MAX_COST_UNITS = 100


class CostLimit:
    """Approve up to a hundred cost units, whatever the load of the machine."""

    def decide(self, job: Candidate, snapshot: Snapshot) -> Approved | Denied:
        return Approved() if snapshot.used + job.cost_units <= MAX_COST_UNITS else Denied("full", 2.0)


@pytest.fixture
def cost_limit(settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": None}, "ADMISSION_POLICY": f"{__name__}.CostLimit"}


def request_lease(remote: RemoteClient, **fields: Any) -> Any:
    return remote.api.post(f"{LEASE}/request", {"addon_id": remote.addon, "job_type": "preview", **fields})


@pytest.mark.usefixtures("cost_limit")
def test_a_decision_tells_the_cost_in_use_when_it_was_made(remote: RemoteClient) -> None:
    job_ids = [remote.submit(cost_units=40) for _ in range(3)]
    remote.poll()
    decisions = JobEvent.objects.filter(kind__in=["ADMITTED", "DENIED"]).order_by("job_id")
    assert [(event.kind, event.job_id, event.data["used"]) for event in decisions] == [
        ("ADMITTED", job_ids[0], 0),
        ("ADMITTED", job_ids[1], 40),
        ("DENIED", job_ids[2], 80),
    ]


def test_a_token_has_a_bounded_number_of_leases(remote: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_leases, "MAX_LIVE_LEASES", 3)
    leases = [request_lease(remote).json() for _ in range(3)]
    denied = request_lease(remote).json()
    assert (denied["approved"], denied["reason"]) == (False, "this token has 3 leases")
    assert denied["retry_after_sec"] > 0
    assert Lease.objects.count() == 3
    assert request_lease(RemoteClient()).json()["approved"] is True  # another token
    remote.release(leases[0])
    assert request_lease(remote).json()["approved"] is True


@pytest.mark.usefixtures("cost_limit")
def test_denials_count_as_leases_of_a_token(remote: RemoteClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_leases, "MAX_LIVE_LEASES", 5)
    assert request_lease(remote, cost_units=100).json()["approved"]
    for number in range(10):
        assert not request_lease(remote, job_type=f"preview-{number}").json()["approved"]
    assert Lease.objects.count() == 5


def sum_cost_units() -> int:
    return sum(Job.objects.filter(status__in=[Status.DISPATCHING, Status.RUNNING]).values_list("cost_units", flat=True))


@pytest.mark.usefixtures("cost_limit")
def test_offers_never_cost_more_than_the_capacity(remote: RemoteClient) -> None:
    ids = [remote.submit(cost_units=30) for _ in range(5)]
    assert remote.poll_ids() == ids[:3]
    assert remote.poll_ids() == ids[:3]
    lease = remote.start(ids[0])
    assert remote.poll_ids() == ids[1:3]
    remote.complete(lease)
    assert remote.poll_ids() == [ids[3], *ids[1:3]]
    assert sum_cost_units() == 90


@pytest.mark.usefixtures("cost_limit")
def test_a_denial_is_recorded_once_while_its_reason_is_the_same(remote: RemoteClient) -> None:
    remote.submit(cost_units=90)
    denied = remote.submit(cost_units=20)
    for _ in range(3):
        remote.poll()
    assert list_event_kinds(get_job(denied)) == ["SUBMITTED", "DENIED"]
    assert JobEvent.objects.get(job_id=denied, kind=EventKind.DENIED).reason == "full"


@pytest.mark.usefixtures("cost_limit")
def test_a_smaller_job_behind_one_that_does_not_fit_is_offered(remote: RemoteClient) -> None:
    large, _too_large, small = (remote.submit(cost_units=cost) for cost in (60, 50, 40))
    assert remote.poll_ids() == [large, small]


@pytest.mark.usefixtures("cost_limit")
def test_a_lease_without_a_job_counts_in_admission_until_it_is_released(remote: RemoteClient) -> None:
    job_id = remote.submit(cost_units=30)
    granted = request_lease(remote, cost_units=80)
    assert granted.status_code == 200
    assert set(granted.json()) == {"approved", "lease_id", "lease_expires_at"}
    assert granted.json()["approved"] is True
    assert remote.poll_ids() == []
    denied = request_lease(remote, cost_units=30).json()
    assert (denied["approved"], denied["reason"]) == (False, "full")
    assert 0 < denied["retry_after_sec"] <= 2
    for _ in range(2):
        assert remote.release(granted.json()).json() == {"released": True}
    assert remote.poll_ids() == [job_id]


def test_without_a_policy_every_lease_is_granted(remote: RemoteClient) -> None:
    assert [request_lease(remote, cost_units=100).json()["approved"] for _ in range(3)] == [True] * 3


def test_a_heartbeat_extends_such_a_lease(remote: RemoteClient) -> None:
    lease = request_lease(remote, constraints={"cpu_heavy": True}, priority="HIGH", expected_duration_sec=5).json()
    Lease.objects.update(expires_at=Now() + timedelta(seconds=1))
    document = remote.send_heartbeat(lease).json()
    assert document["lease_expires_at"] > lease["lease_expires_at"]
    assert (document["cancel_requested"], document["cancel_mode"]) == (False, "")


def test_a_released_lease_cannot_be_extended(remote: RemoteClient) -> None:
    lease = request_lease(remote).json()
    remote.release(lease)
    refused = remote.send_heartbeat(lease)
    assert (refused.status_code, refused.json()["code"]) == (409, "lease_lost")


@pytest.mark.parametrize("tenant", ["default", "acme", None])
def test_a_lease_of_another_token_is_404(remote: RemoteClient, tenant: str | None) -> None:
    lease = request_lease(remote).json()
    other = RemoteClient(ApiClient("work", tenant=tenant))
    assert (other.send_heartbeat(lease).status_code, other.release(lease).status_code) == (404, 404)
    assert remote.send_heartbeat(lease).status_code == 200


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"addon_id": None}, "addon_id"),
        ({"addon_id": 5}, "addon_id"),
        ({"job_type": ""}, "job_type"),
        ({"cost_units": 101}, "cost_units"),
        ({"priority": "MOST"}, "priority"),
        ({"constraints": []}, "constraints"),
        ({"expected_duration_sec": -1}, "expected_duration_sec"),
        ({"payload": {}}, "payload"),
    ],
)
def test_a_bad_request_names_the_field(remote: RemoteClient, fields: dict[str, Any], loc: str) -> None:
    assert read_error_locations(request_lease(remote, **fields)) == [["body", loc]]


def test_a_request_for_another_tenant_is_refused(remote: RemoteClient) -> None:
    assert request_lease(remote, tenant="acme").status_code == 403
