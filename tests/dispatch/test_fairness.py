"""Fairness, where a site has asked for it: what waits rises, and shares take turns. Elsewhere the order is strict."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from jobs.engine import promoter
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.maintenance import runner
from jobs.engine.maintenance.aging import PriorityAging
from jobs.engine.selection import fair_share
from jobs.models import Job, ShareAccount, SystemSnapshot
from jobs.services import jobs as job_services
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import list_event_kinds, list_events

pytestmark = pytest.mark.django_db
TYPE = job_types.anything.name
NO_LIMIT = {"LIMITS": {"global": None}}
AGING = {**NO_LIMIT, "FAIRNESS_POLICY": "jobs.policies.fairness.Aging"}
SHARES = {**NO_LIMIT, "FAIRNESS_POLICY": "tests.sample_app.policies.by_addon"}


def age_job(job: Job, seconds: float) -> Job:
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - timedelta(seconds=seconds))
    return Job.objects.get(pk=job.pk)


def priority(job: Job) -> int:
    return Job.objects.get(pk=job.pk).priority


# ---------------------------------------------------------------------- aging


@override_settings(JOBSCHEDULER=AGING)
def test_a_waiting_job_rises_and_the_event_says_from_where_to_where() -> None:
    old, new = age_job(job_services.enqueue(TYPE, priority="LOW"), 130), job_services.enqueue(TYPE, priority="LOW")
    assert PriorityAging().run_round() == 1
    found = Job.objects.get(pk=old.pk)
    assert (found.priority, found.base_priority, priority(new)) == (35, 25, 25)
    last = list_events(old)[-1]
    assert (last.kind, last.reason, last.data) == ("AGED", "has waited 130 s", {"from": 25, "to": 35})
    assert PriorityAging().run_round() == 0, "once per step"
    age_job(old, 400)
    assert PriorityAging().run_round() == 1
    assert priority(old) == 55
    age_job(old, 1e6)
    PriorityAging().run_round()
    assert priority(old) == 100


@override_settings(JOBSCHEDULER=AGING)
def test_it_overtakes_what_came_later() -> None:
    low = age_job(job_services.enqueue(TYPE, priority="LOW"), 900)
    for _ in range(5):
        job_services.enqueue(TYPE, priority="URGENT")
    runner.run_tasks()
    executor.claim(low)


@override_settings(JOBSCHEDULER=AGING)
@pytest.mark.parametrize("not_before", [60, -60])
def test_the_time_until_its_own_time_is_no_waiting(not_before: float) -> None:
    job = job_services.enqueue(TYPE, priority="LOW", not_before=timezone.now() + timedelta(seconds=not_before))
    age_job(job, 3600)
    promoter.promote_due()
    PriorityAging().run_round()
    assert priority(job) == (25 if not_before > 0 else 30)


@override_settings(JOBSCHEDULER=AGING)
def test_jobs_rise_in_lanes_and_for_remote_workers_too() -> None:
    in_lane = [job_services.enqueue(TYPE, priority=p, target="book-1") for p in ("LOW", "HIGH")]
    remote = job_services.enqueue(TYPE, priority="LOW", addon_id="visuals")
    Job.objects.filter(pk=remote.pk).update(remote=True)
    for job in (in_lane[0], remote):
        age_job(job, 900)
    promoter.promote()
    assert PriorityAging().run_round() == 2
    assert (priority(in_lane[0]), priority(remote)) == (100, 100)
    executor.claim(in_lane[0])


@override_settings(JOBSCHEDULER=AGING)
def test_one_round_raises_only_so_many_of_each_priority() -> None:
    ids = job_services.enqueue_many([{"job_type": TYPE, "priority": "LOW"}] * 130)
    Job.objects.filter(pk__in=ids).update(created_at=timezone.now() - timedelta(seconds=61))
    assert PriorityAging().run_round() == 100
    assert PriorityAging().run_round() == 30


@override_settings(JOBSCHEDULER=AGING)
def test_a_retry_begins_where_the_job_began() -> None:
    old = age_job(job_services.enqueue(TYPE, priority="LOW"), 900)
    PriorityAging().run_round()
    failed = executor.fail(executor.claim(old), retry_in=0)
    assert (failed.priority, Job.objects.get(retry_of=failed).priority) == (100, 25)


def test_without_a_policy_nothing_rises() -> None:
    old = age_job(job_services.enqueue(TYPE, priority="LOW"), 1e6)
    high = job_services.enqueue(TYPE, priority="HIGH")
    assert PriorityAging().run_round() == 0
    executor.claim(high)
    assert (priority(old), list_event_kinds(old)) == (25, ["SUBMITTED"])


# ---------------------------------------------------------------------- fair shares


def submit(addon: str, jobs: int, **fields: Any) -> None:
    job_services.enqueue_many([{"job_type": TYPE, "addon_id": addon, **fields}] * jobs)


def drain(rounds: int) -> str:
    """The addons whose jobs start, one after the other."""
    started = ""
    for _ in range(rounds):
        job = executor.claim_next()
        assert job is not None
        started += job.addon_id[0]
        executor.complete(job)
    return started


@override_settings(JOBSCHEDULER=SHARES)
def test_an_addon_that_floods_the_queue_takes_its_turns_like_the_others() -> None:
    submit("a", 50)
    submit("b", 3)
    assert drain(8) == "ababab" + "aa"


@pytest.mark.parametrize(("policy", "owner"), [("by_addon", "addon_id"), ("by_tenant", "tenant")])
def test_one_that_floods_the_queue_with_many_resources_takes_its_turns_too(policy: str, owner: str) -> None:
    """With more flows than one claim looks at."""
    with override_settings(JOBSCHEDULER={**NO_LIMIT, "FAIRNESS_POLICY": f"tests.sample_app.policies.{policy}"}):
        flood = [{"job_type": TYPE, owner: "a", "resource": f"r{n}"} for n in range(fair_share.MAX_FLOWS + 10)]
        job_services.enqueue_many(flood)
        job_services.enqueue_many([{"job_type": TYPE, owner: "b"}] * 2)
        started = ""
        for _ in range(6):
            job = executor.claim_next()
            assert job is not None
            started += getattr(job, owner)
            executor.complete(job)
    assert started == "ababaa"


@override_settings(JOBSCHEDULER=SHARES)
def test_twice_the_weight_is_twice_the_turns() -> None:
    for addon in ("heavy", "light"):
        submit(addon, 30)
    assert Counter(drain(12)) == {"h": 8, "l": 4}


@override_settings(JOBSCHEDULER=SHARES)
def test_priorities_come_before_shares() -> None:
    submit("a", 3, priority="HIGH")
    submit("b", 3)
    assert drain(6) == "aaabbb"


@override_settings(JOBSCHEDULER=SHARES)
def test_who_was_away_has_saved_nothing() -> None:
    submit("a", 40)
    drain(20)
    submit("b", 10)
    assert Counter(drain(10)) == {"a": 5, "b": 5}


@override_settings(JOBSCHEDULER=SHARES)
def test_a_claim_of_many_is_shared_too_and_says_who_went_before_others() -> None:
    submit("a", 10)
    submit("b", 10)
    claims = Claimer("w", ServedJobs((TYPE,)), process_key="w@1").claim(range(4), lease_sec=30)
    taken = [Job.objects.get(pk=claim.id) for claim in claims]
    assert Counter(job.addon_id for job in taken) == {"a": 2, "b": 2}
    fields = {job.addon_id: [event.reason for event in list_events(job) if event.kind == "ADMITTED"] for job in taken}
    assert fields == {"a": [], "b": ["fair share: the turn of addon:b"]}


@override_settings(JOBSCHEDULER={**SHARES, "LIMITS": {"global": None, "addon": {"a": 1}}})
def test_limits_hold_within_shares() -> None:
    from jobs.engine.selection import limits

    limits.sync_limits()
    submit("a", 5)
    submit("b", 5)
    claims = Claimer("w", ServedJobs((TYPE,)), process_key="w@1").claim(range(4), lease_sec=30)
    assert Counter(Job.objects.get(pk=claim.id).addon_id for claim in claims) == {"a": 1, "b": 3}


@override_settings(JOBSCHEDULER=SHARES)
def test_idle_accounts_are_forgotten() -> None:
    submit("a", 3)
    submit("b", 1)
    drain(4)
    assert ShareAccount.objects.count() == 2
    clock = SystemSnapshot.objects.get().share_clock
    assert clock > 0
    fair_share.delete_idle_accounts()
    assert all(account.served > clock for account in ShareAccount.objects.all())


def test_without_a_policy_the_first_is_first() -> None:
    submit("a", 3)
    submit("b", 3)
    assert drain(6) == "aaabbb"
    assert not ShareAccount.objects.exists()
