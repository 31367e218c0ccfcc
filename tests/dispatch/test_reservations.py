"""The next slot: running jobs go on, direct calls keep their order, the queue waits, a dead process holds no slot."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from jobs.engine.selection import limits
from jobs.engine.slots import leases, reservations
from jobs.errors import NoSlot
from jobs.models import Job, Lease
from jobs.policies.admission import Candidate
from jobs.process_identity import ProcessIdentity
from jobs.services import jobs as job_services
from jobs.services import limits as operator
from jobs.states import LEASE_EXPIRED_REASON
from tests.sample_app import job_types
from tests.support import executor

pytestmark = pytest.mark.django_db
TYPE = job_types.anything.name
PER_RESOURCE = {"LIMITS": {"global": None, "resource": {"ollama": 1, "remote": 2}}}


@pytest.fixture(autouse=True)
def rows() -> None:
    limits.sync_limits()


def reserve(resource: str = "default", job_type: str = TYPE, **facts: object) -> Lease:
    candidate = Candidate(job_type=job_type, resource=resource, **facts)  # type: ignore[arg-type]
    return reservations.reserve_slot(candidate, "somebody")


def is_granted(lease: Lease) -> bool:
    lease.refresh_from_db()
    return lease.granted_at is not None


def test_dec_004_unit_what_runs_goes_on_then_the_direct_call_then_the_queue() -> None:
    running = executor.claim(job_services.enqueue(TYPE))
    queued = job_services.enqueue(TYPE, priority="URGENT")
    direct = reserve()
    assert not is_granted(direct)
    assert executor.claim_next() is None

    executor.complete(running)
    assert executor.claim_next() is None, "the slot that came free is the direct call's"
    assert reservations.try_grant(direct) is None
    assert executor.claim_next() is None, "and so it is while that runs"
    leases.end_lease(direct.pk, "completed")
    executor.claim(queued)


def test_a_free_slot_is_taken_at_once() -> None:
    assert is_granted(reserve())
    assert executor.claim_next() is None


def test_direct_calls_keep_their_order() -> None:
    running = executor.claim(job_services.enqueue(TYPE))
    first, second = reserve(), reserve()
    executor.complete(running)
    reason = reservations.try_grant(second)
    assert reason is not None
    assert reservations.try_grant(first) is None
    assert reservations.try_grant(second) is not None
    leases.end_lease(first.pk, "completed")
    assert reservations.try_grant(second) is None


@override_settings(JOBSCHEDULER={"LIMITS": {"global": 2}})
def test_room_for_two_is_room_for_the_second_in_line() -> None:
    limits.sync_limits()
    running = [executor.claim(job_services.enqueue(TYPE)) for _ in range(2)]
    first, second, third = (reserve() for _ in range(3))
    for job in running:
        executor.complete(job)
    assert reservations.try_grant(second) is None, "the first one's slot is kept for it"
    assert reservations.try_grant(third) is not None
    assert reservations.try_grant(first) is None


@override_settings(JOBSCHEDULER=PER_RESOURCE)
def test_only_the_limits_that_the_type_falls_under_are_shut() -> None:
    limits.sync_limits()
    executor.claim(job_services.enqueue(TYPE, resource="ollama"))
    waiting = reserve("ollama")
    job_services.enqueue(TYPE, resource="ollama")
    free = [job_services.enqueue(TYPE, resource=name) for name in ("remote", "default", "remote")]
    assert [executor.claim_next() for _ in range(4)] == [*free, None]
    other = reserve("remote")
    assert not is_granted(other), "two of two run"
    executor.complete(Job.objects.get(pk=free[0].pk))
    assert reservations.try_grant(other) is None, "it shares no limit with the one that waits"
    assert reservations.try_grant(waiting) is not None


@override_settings(JOBSCHEDULER={"LIMITS": {"global": None}})
def test_without_any_limit_nobody_waits() -> None:
    limits.sync_limits()
    assert all(is_granted(reserve()) for _ in range(3))
    executor.claim(job_services.enqueue(TYPE))


def test_a_lease_that_runs_out_frees_its_slot_at_the_next_claim() -> None:
    held, waits = reserve(), reserve()
    job = job_services.enqueue(TYPE)
    assert executor.claim_next() is None
    for lease in (held, waits):
        past(lease)
    executor.claim(job)
    held.refresh_from_db()
    assert (held.outcome, held.ended_at is not None) == (LEASE_EXPIRED_REASON, True)


def test_a_lease_that_was_ended_cannot_be_renewed() -> None:
    lease = reserve()
    past(lease)
    assert leases.end_dead_leases() == 1
    assert leases.renew_slot_leases([lease.pk]) == (set(), {lease.pk})
    assert not leases.end_lease(lease.pk, "completed")
    lease.refresh_from_db()
    assert lease.outcome == LEASE_EXPIRED_REASON


def test_a_renewed_lease_lives_on() -> None:
    lease = reserve()
    past(lease)
    assert leases.renew_slot_leases([lease.pk]) == ({lease.pk}, set())
    assert leases.end_dead_leases() == 0


def test_a_caller_that_is_proven_gone_is_not_waited_for() -> None:
    lease = reserve()
    me = ProcessIdentity.current()
    gone = ProcessIdentity(me.name, me.host, me.boot_id, me.namespace, me.pid, "1")  # this pid, started at another time
    Lease.objects.filter(pk=lease.pk).update(process=gone.slot_owner(0))
    assert leases.end_dead_leases() == 1
    lease.refresh_from_db()
    assert lease.outcome == "Scheduler crash recovery"


@pytest.mark.sqlite_only
def test_a_clock_that_jumps_ends_nothing_that_is_still_renewed() -> None:
    lease = reserve()
    Lease.objects.filter(pk=lease.pk).update(expires_at=timezone.now() - timedelta(hours=1))
    assert leases.end_dead_leases() == 0, "its last beat was a moment ago by the steady clock"
    assert executor.claim_next() is None


def test_a_paused_scope_refuses_at_once_and_later_too() -> None:
    running = executor.claim(job_services.enqueue(TYPE))
    waiting = reserve()
    operator.pause("job_type", TYPE)
    with pytest.raises(NoSlot, match="paused"):
        reserve()
    reason = reservations.try_grant(waiting)
    assert reason is not None
    assert reason.is_permanent
    executor.complete(running)


def test_admission_only_leases_take_no_slot() -> None:
    Lease.objects.create(kind="ADMISSION", job_type=TYPE, flow_id=1, owner="a", granted_at=timezone.now(), **later())
    executor.claim(job_services.enqueue(TYPE))


@override_settings(
    JOBSCHEDULER={"CONCURRENCY_POLICY": "tests.sample_app.policies.one_of_each_type", "LIMITS": {"global": None}}
)
def test_a_limit_that_only_a_policy_knows_of_gives_way_too() -> None:
    limits.sync_limits()
    running = executor.claim(job_services.enqueue(TYPE))
    direct = reserve()
    assert not is_granted(direct)
    job_services.enqueue(TYPE)
    other = job_services.enqueue(job_types.nothing.name)
    executor.complete(running)
    executor.claim(other)
    assert executor.claim_next() is None
    assert reservations.try_grant(direct) is None
    assert executor.claim_next() is None


def past(lease: Lease) -> None:
    """Its time is over, by every clock."""
    over = {"expires_at": timezone.now() - timedelta(seconds=1)}
    if connection.vendor == "sqlite":
        over["beat_clock"] = None  # type: ignore[assignment]
    Lease.objects.filter(pk=lease.pk).update(**over)


def later() -> dict[str, object]:
    return {"expires_at": timezone.now() + timedelta(minutes=1)}
