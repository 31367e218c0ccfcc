"""Many workers at once, judged by the ledger outside the database."""

from __future__ import annotations

import random

import pytest

from tests.chaos import crowded, shutdowns
from tests.worker.harness import Fleet


def test_four_workers_keep_lanes_in_order_and_every_limit(fleet: Fleet, chance: random.Random) -> None:
    verdict = crowded.run(fleet, chance, jobs=400, lanes=20)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is only one writer at a time: a count cannot grow old
def test_limits_that_are_counted_without_a_lock_are_exceeded(fleet: Fleet, chance: random.Random) -> None:
    verdict = crowded.run(fleet, chance, jobs=300, lanes=20, sabotage="unlocked_limits")
    print(verdict)
    assert any("are allowed" in each for each in verdict.broken)


@pytest.mark.timeout(240)
def test_sigterm_at_random_moments_costs_no_job_an_attempt(fleet: Fleet, chance: random.Random) -> None:
    verdict = shutdowns.run(fleet, chance, rounds=5)
    print(verdict)
    assert not verdict.broken, str(verdict)
