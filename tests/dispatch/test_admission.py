"""Admission: what is denied waits in its place, says why, and is recorded when that changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import override_settings
from django.utils import timezone

from jobs import direct
from jobs.conf import conf
from jobs.engine.maintenance import system_load
from jobs.engine.maintenance.system_load import Measurement
from jobs.engine.selection import limits
from jobs.engine.slots import admission_leases
from jobs.engine.slots.admission_leases import GrantedLease
from jobs.errors import LeaseLost, NoSlot, NotFound
from jobs.models import Gate, Job, Lease, SystemSnapshot
from jobs.policies.admission import Approved, Candidate, Denied, Snapshot, State
from jobs.services import jobs as job_services
from jobs.states import LEASE_EXPIRED_REASON, Status
from tests.dispatch import handlers
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import list_event_kinds, list_events

pytestmark = pytest.mark.django_db
TYPE = job_types.anything.name
CALM = {"quiet_load": 900, "busy_load": 1000, "streak_sec": 0}
CAPACITY: dict[str, Any] = {
    "LIMITS": {"global": None},
    "ADMISSION_POLICY": "jobs.policies.admission.Capacity",
    "ADMISSION": CALM,
}
assert handlers


@pytest.fixture
def capacity() -> Iterator[None]:
    with override_settings(JOBSCHEDULER=CAPACITY):
        limits.sync_limits()
        yield


class Sulking:
    """Denies for a reason that the test chooses."""

    reason = ""

    def decide(self, job: Candidate, snapshot: Snapshot) -> Approved | Denied:
        return Denied(self.reason, 7.0) if self.reason else Approved()


@pytest.fixture
def sulking(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Sulking]]:
    monkeypatch.setattr(Sulking, "reason", "not today")
    with override_settings(JOBSCHEDULER={"ADMISSION_POLICY": f"{__name__}.Sulking", "LIMITS": {"global": None}}):
        yield Sulking


def enqueue(cost: int = 30, **fields: Any) -> Job:
    return job_services.enqueue(TYPE, cost_units=cost, **fields)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


# ---------------------------------------------------------------------- capacity


def test_cost_units_of_what_is_active_bound_what_starts(capacity: None) -> None:
    jobs = [enqueue(30) for _ in range(5)]
    running = [executor.claim(job) for job in jobs[:3]]
    assert executor.claim_next() is None
    executor.complete(running[0])
    executor.claim(jobs[3])
    assert executor.claim_next() is None


def test_a_job_that_fits_passes_one_that_does_not(capacity: None) -> None:
    executor.claim(enqueue(80))
    large, small = enqueue(30, priority="HIGH"), enqueue(10)
    executor.claim(small)
    assert fresh(large).status == Status.QUEUED


def test_what_is_reserved_counts_as_much_as_what_runs(capacity: None) -> None:
    assert isinstance(admission_leases.request_lease(owner="addon", job_type="x", cost_units=80), GrantedLease)
    blocked = enqueue(30)
    assert executor.claim_next() is None
    executor.claim(enqueue(20))
    assert fresh(blocked).status == Status.QUEUED


def test_an_addon_is_capped(capacity: None) -> None:
    with override_settings(JOBSCHEDULER={**CAPACITY, "ADMISSION": {**CALM, "max_cost_per_addon": 40}}):
        executor.claim(enqueue(30, addon_id="visuals"))
        waits, passes = enqueue(30, addon_id="visuals"), enqueue(30, addon_id="sounds")
        executor.claim(passes)
        assert fresh(waits).status_reason == "the cost limit of its addon is reached"


def test_heavy_jobs_wait_until_the_machine_is_quiet(capacity: None, monkeypatch: pytest.MonkeyPatch) -> None:
    heavy, light = enqueue(5, constraints={"cpu_heavy": True}), enqueue(5)
    monkeypatch.setattr(system_load, "measure", lambda: Measurement(950.0, 0.0, 0.0))
    executor.claim(light)
    assert SystemSnapshot.objects.get().state == State.NORMAL
    assert executor.claim_next() is None
    monkeypatch.setattr(system_load, "measure", lambda: Measurement(0.1, 0.0, 0.0))
    assert system_load.write_measurement()
    executor.claim(heavy)


def test_lower_priorities_do_not_take_what_a_job_near_its_deadline_waits_for(capacity: None) -> None:
    running = [executor.claim(enqueue(40)) for _ in range(2)]
    soon = timezone.now() + timedelta(minutes=1)
    urgent = enqueue(50, priority="HIGH", time_sensitive=True, deadline_at=soon)
    small = enqueue(10)
    assert executor.claim_next() is None, "ten are free, and are kept"
    assert fresh(small).status_reason == "a job near its deadline goes first"
    executor.claim(enqueue(10, priority="URGENT"))
    executor.complete(running[0])
    executor.claim(urgent)
    executor.complete(running[1])
    executor.claim(small)


def test_a_deadline_that_is_far_keeps_nothing(capacity: None) -> None:
    executor.claim(enqueue(80))
    enqueue(50, priority="HIGH", time_sensitive=True, deadline_at=timezone.now() + timedelta(days=1))
    executor.claim(enqueue(10))


def test_limits_and_admission_both_have_their_say(capacity: None) -> None:
    with override_settings(JOBSCHEDULER={**CAPACITY, "LIMITS": {"global": 2}}):
        limits.sync_limits()
        jobs = [enqueue(10) for _ in range(3)]
        running = [executor.claim(job) for job in jobs[:2]]
        assert executor.claim_next() is None
        assert fresh(jobs[2]).recheck_at is None, "a full limit is not admission's business"
        executor.complete(running[0])
        executor.claim(jobs[2])


def test_a_direct_call_asks_too(capacity: None) -> None:
    running = executor.claim(enqueue(100))
    with pytest.raises(NoSlot, match="capacity"):
        direct.run("direct.echo", wait=0)
    executor.complete(running)
    assert direct.run("direct.echo", wait=0)["word"] == "hello"


# ---------------------------------------------------------------------- what is recorded


def test_a_denied_job_says_why_and_when_and_keeps_its_own_time(sulking: type[Sulking]) -> None:
    job = enqueue(not_before=timezone.now() - timedelta(seconds=5))
    before = fresh(job).not_before
    assert executor.claim_next() is None
    denied = fresh(job)
    assert (denied.status, denied.status_reason, denied.not_before) == (Status.QUEUED, "not today", before)
    assert denied.recheck_at is not None
    assert 5 < (denied.recheck_at - timezone.now()).total_seconds() < 8


def test_a_decision_is_one_event_per_change_not_per_tick(sulking: type[Sulking]) -> None:
    job = enqueue()
    for _ in range(5):
        assert executor.claim_next() is None
    assert list_event_kinds(job) == ["SUBMITTED", "DENIED"]
    sulking.reason = "still not"
    for _ in range(5):
        assert executor.claim_next() is None
    sulking.reason = ""
    executor.claim(job)
    decisions = [(event.kind, event.reason) for event in list_events(job)[1:]]
    assert decisions == [("DENIED", "not today"), ("DENIED", "still not"), ("ADMITTED", ""), ("RUNNING", "admitted")]
    taken = fresh(job)
    assert (taken.recheck_at, taken.status_reason) == (None, "")


def test_a_denial_that_lasts_stays_up_to_date_without_an_event(sulking: type[Sulking]) -> None:
    job = enqueue()
    executor.claim_next()
    Job.objects.filter(pk=job.pk).update(recheck_at=timezone.now() - timedelta(seconds=1))
    executor.claim_next()
    assert fresh(job).recheck_at > timezone.now()  # type: ignore[operator]
    assert list_event_kinds(job) == ["SUBMITTED", "DENIED"]


def test_the_order_among_those_who_were_denied_stays(sulking: type[Sulking]) -> None:
    """They keep their place: who is asked again later does not fall behind who came later."""
    first, second = enqueue(), enqueue()
    for _ in range(3):
        executor.claim_next()
    sulking.reason = ""
    executor.claim(first)
    executor.claim(second)


def test_a_denied_job_that_is_put_off_waits_for_its_own_time(sulking: type[Sulking]) -> None:
    job = enqueue()
    executor.claim_next()
    job_services.update(job.pk, {"not_before": timezone.now() + timedelta(hours=1)})
    put_off = fresh(job)
    assert (put_off.gate, put_off.recheck_at) == (Gate.TIME, None)
    sulking.reason = ""
    assert executor.claim_next() is None


def test_open_admission_records_nothing() -> None:
    job = enqueue()
    executor.claim(job)
    assert list_event_kinds(job) == ["SUBMITTED", "RUNNING"]
    assert not SystemSnapshot.objects.exists()


def test_a_crowd_that_is_denied_is_not_written_all_at_once(sulking: type[Sulking]) -> None:
    job_services.enqueue_many([{"job_type": TYPE}] * 120)
    executor.claim_next()
    assert Job.objects.exclude(recheck_at=None).count() == 50


# ---------------------------------------------------------------------- leases without a job


def test_a_lease_is_asked_for_kept_and_given_back(capacity: None) -> None:
    got = admission_leases.request_lease(owner="a", job_type="index", cost_units=60, constraints={"cpu_heavy": False})
    assert isinstance(got, GrantedLease)
    refused = admission_leases.request_lease(owner="b", job_type="index", cost_units=60)
    assert isinstance(refused, Denied)
    assert refused.retry_after_sec >= 1
    until = admission_leases.renew_lease(got.lease_id, owner="a")
    assert until >= got.expires_at
    for _ in range(2):
        admission_leases.release_lease(got.lease_id, owner="a")
    assert Lease.objects.get(pk=got.lease_id).outcome == "released"
    with pytest.raises(LeaseLost):
        admission_leases.renew_lease(got.lease_id, owner="a")


def test_a_denial_is_the_same_until_it_is_time_to_ask_again(capacity: None) -> None:
    held = admission_leases.request_lease(owner="a", job_type="index", cost_units=60)
    assert isinstance(held, GrantedLease)
    first = admission_leases.request_lease(owner="b", job_type="index", cost_units=60)
    admission_leases.release_lease(held.lease_id, owner="a")
    assert admission_leases.request_lease(owner="b", job_type="index", cost_units=60) == first
    assert isinstance(admission_leases.request_lease(owner="c", job_type="index", cost_units=20), GrantedLease), (
        "another's question"
    )
    Lease.objects.filter(granted_at=None).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert isinstance(admission_leases.request_lease(owner="b", job_type="index", cost_units=60), GrantedLease)
    assert not Lease.objects.filter(granted_at=None).exists(), "nothing is left of a denial"


def test_a_foreign_or_guessed_lease_is_not_there(capacity: None) -> None:
    got = admission_leases.request_lease(owner="a", job_type="index")
    assert isinstance(got, GrantedLease)
    for lease_id, owner in ((got.lease_id, "b"), (uuid4(), "a")):
        for verb in (admission_leases.renew_lease, admission_leases.release_lease):
            with pytest.raises(NotFound):
                verb(lease_id, owner=owner)


def test_a_lease_that_nobody_renews_frees_what_it_had(capacity: None) -> None:
    got = admission_leases.request_lease(owner="a", job_type="index", cost_units=100)
    assert isinstance(got, GrantedLease)
    job = enqueue(30)
    assert executor.claim_next() is None
    Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1), beat_clock=None)
    executor.claim(job)
    assert Lease.objects.get(pk=got.lease_id).outcome == LEASE_EXPIRED_REASON


def test_without_a_policy_every_lease_is_granted() -> None:
    assert all(
        isinstance(admission_leases.request_lease(owner="a", job_type="x", cost_units=100), GrantedLease)
        for _ in range(3)
    )


# ---------------------------------------------------------------------- the snapshot


def test_one_holder_measures_and_another_takes_over_when_it_falls_silent(
    capacity: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert system_load.write_measurement()
    mine = SystemSnapshot.objects.get()
    assert mine.taken_at is not None
    monkeypatch.setattr(system_load, "_holder_name", lambda: "another")
    assert not system_load.write_measurement()
    assert SystemSnapshot.objects.get().holder == mine.holder
    SystemSnapshot.objects.update(held_until=timezone.now() - timedelta(seconds=1))
    assert system_load.write_measurement()
    assert SystemSnapshot.objects.get().holder == "another"


def test_a_state_is_as_old_as_its_last_change(capacity: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_load, "measure", lambda: Measurement(0.0, 0.0, 0.0))
    system_load.write_measurement()
    since = SystemSnapshot.objects.get().state_since
    system_load.write_measurement()
    assert SystemSnapshot.objects.get().state_since == since
    monkeypatch.setattr(system_load, "measure", lambda: Measurement(5000.0, 0.0, 0.0))
    system_load.write_measurement()
    changed = SystemSnapshot.objects.get()
    assert (changed.state, changed.state_since == since) == (State.BUSY, False)


def test_whoever_needs_the_figures_measures_if_nobody_does(capacity: None) -> None:
    executor.claim(enqueue(1))
    assert SystemSnapshot.objects.get().taken_at is not None
    old = timezone.now() - timedelta(minutes=1)
    SystemSnapshot.objects.update(taken_at=old)
    executor.claim_next()
    assert SystemSnapshot.objects.get().taken_at > old


def test_real_figures_are_measured() -> None:
    found = system_load.measure()
    assert found.load >= 0
    assert 0 <= found.cpu <= 1
    assert 0 < found.memory < 1


def test_nobody_measures_where_everything_is_admitted() -> None:
    assert type(conf.policy("ADMISSION_POLICY")).__name__ == "Open"
    assert system_load.run_round() == "off"
    assert not SystemSnapshot.objects.exists()
