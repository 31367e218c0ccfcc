"""Dispatching among real processes: direct calls, capacity, the strict order, and aging."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections

from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.chaos import capacity, direct
from tests.support.ledger import count_most_at_once
from tests.support.worker_processes import (
    LONG_LEASE_SETTINGS,
    MANAGE,
    Fleet,
    wait_for_status,
    wait_until,
    wait_until_all_ended,
)

HIGH_WAITING = 200  # so many that the flood does not run dry on a loaded machine
HIGHS = 75
HIGH = {"job_type": "sample.work", "params": {"seconds": 0.01}, "priority": "HIGH"}


def test_dec_004_integration_a_direct_call_runs_next_and_two_keep_their_order(
    fleet: Fleet, chance: random.Random
) -> None:
    verdict = direct.run(fleet, chance, rounds=4)
    print(verdict)
    assert not verdict.broken, str(verdict)


def test_a_queue_that_does_not_wait_for_direct_calls_is_noticed(fleet: Fleet, chance: random.Random) -> None:
    verdict = direct.run(fleet, chance, rounds=3, sabotage="ignore_reservations")
    print(verdict)
    assert any("ran as" in violation for violation in verdict.broken)


@pytest.mark.parametrize("housekeeping", [True, False])
@pytest.mark.parametrize("waits", [False, True])
def test_a_killed_web_process_frees_the_queue_within_its_lease(
    fleet: Fleet, chance: random.Random, waits: bool, housekeeping: bool
) -> None:
    verdict = direct.run_killed(fleet, chance, rounds=1, waits=waits, housekeeping=housekeeping)
    print(verdict)
    assert not verdict.broken, str(verdict)


def test_three_of_thirty_fit_in_a_hundred_however_many_workers(fleet: Fleet, chance: random.Random) -> None:
    verdict = capacity.run(fleet, chance, jobs=60)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is only one writer at a time: a count cannot grow old
def test_a_capacity_that_is_counted_without_a_lock_is_exceeded(fleet: Fleet, chance: random.Random) -> None:
    verdict = capacity.run(fleet, chance, jobs=180, sabotage="skip_load_lock")  # enough claims to meet
    print(verdict)
    assert any("at once" in violation for violation in verdict.broken)


def test_without_fairness_the_order_is_strict_under_four_workers(fleet: Fleet, chance: random.Random) -> None:
    """Under a limit that all of them share, claims come one after the other: so do their events."""
    items = [{"job_type": "sample.noop", "priority": chance.randrange(0, 101, 5)} for _ in range(200)]
    job_services.enqueue_many(items)
    expected = list(Job.objects.in_dispatch_order().values_list("pk", flat=True))
    fleet.start_many(4, settings={**LONG_LEASE_SETTINGS, "LIMITS": {"global": 4}})
    wait_until_all_ended(60, fleet)
    claimed = JobEvent.objects.filter(kind=EventKind.RUNNING).order_by("id").values_list("job_id", flat=True)
    assert list(claimed) == expected


AGING = {"FAIRNESS_POLICY": "tests.sample_app.policies.quick_aging"}


@pytest.mark.parametrize("fairness", [AGING, {}], ids=["aging", "strict"])
def test_a_low_job_behind_an_endless_flood_of_high_ones(fleet: Fleet, fairness: dict[str, Any]) -> None:
    """With aging it starts within its bound; without, it would wait for ever."""
    low = job_services.enqueue("sample.work", priority="LOW")
    with flood():
        fleet.start(settings={**LONG_LEASE_SETTINGS, "LIMITS": {"global": 1}, **fairness})
        if fairness:
            wait_for_status(low.pk, Status.COMPLETED, fleet=fleet)
            aged = JobEvent.objects.filter(job_id=low.pk, kind=EventKind.AGED)
            assert [event.data for event in aged.order_by("id")][-1]["to"] >= HIGHS
        else:
            wait_until(lambda: Job.objects.filter(status=Status.COMPLETED).count() > 100)
            assert Job.objects.get(pk=low.pk).status == Status.QUEUED


@contextmanager
def flood() -> Iterator[None]:
    """More HIGH jobs than a worker can do, for as long as the block lasts."""
    over = threading.Event()

    def pour() -> None:
        while not over.is_set():
            missing = HIGH_WAITING - Job.objects.filter(status=Status.QUEUED, base_priority=HIGHS).count()
            job_services.enqueue_many(
                [{"job_type": "sample.work", "params": {"seconds": 0.01}, "priority": "HIGH"}] * missing
            )
            over.wait(0.02)
        connections.close_all()

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        wait_until(lambda: Job.objects.filter(base_priority=HIGHS).exists())
        yield
    finally:
        over.set()
        thread.join(30)


def test_con_002_the_recipe_in_the_docs_gives_each_resource_its_own(fleet: Fleet) -> None:
    recipe = re.search(r"JOBSCHEDULER_LIMITS='(.+?)'", (MANAGE.parent / "docs" / "dispatch.md").read_text())
    assert recipe is not None
    pools = ("ollama", "remote", "remote") * 8
    items = [{"job_type": "sample.work", "params": {"pool": p, "seconds": 0.1}, "resource": p} for p in pools]
    job_services.enqueue_many(items)
    fleet.start_many(2, "--concurrency=4", settings={**LONG_LEASE_SETTINGS, "LIMITS": json.loads(recipe.group(1))})
    wait_until_all_ended(60, fleet)
    ran = fleet.ledger.list_calls()
    assert len(ran) == len(items)
    peak = {pool: count_most_at_once(call for call in ran if call.facts["pool"] == pool) for pool in set(pools)}
    assert peak == {"ollama": 1, "remote": 2}
    assert count_most_at_once(ran) == 3


def test_a_worker_with_more_slots_than_the_limits_allow_says_so_once(fleet: Fleet) -> None:
    crowded = fleet.start("--concurrency=4", settings={**LONG_LEASE_SETTINGS, "LIMITS": {"global": 2}})
    fitting = fleet.start("--concurrency=2", settings={**LONG_LEASE_SETTINGS, "LIMITS": {"global": 2}})
    for _ in range(3):
        wait_for_status(job_services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
    assert crowded.output.count("limits set global 4") == 1
    assert "limits set" not in fitting.output
