"""What a worker's turn promises about transactions: isolation, the order of locks, and commits that go unanswered."""

from __future__ import annotations

import random

import pytest

from tests.chaos import commit_cuts, host_locks, isolation
from tests.support.worker_processes import Fleet


@pytest.mark.pg_only
@pytest.mark.timeout(240)
def test_limits_hold_under_every_isolation_level_that_a_host_asks_for(fleet: Fleet, chance: random.Random) -> None:
    strict = ("repeatable read", "serializable")  # READ COMMITTED is the default of every other test
    verdict = isolation.run(fleet, chance, jobs=60, direct=6, ways=["both"], levels=strict)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only
@pytest.mark.timeout(240)
def test_a_count_at_the_host_s_isolation_level_exceeds_limits(fleet: Fleet, chance: random.Random) -> None:
    verdict = isolation.run_unguarded(fleet, chance, jobs=60, direct=2)
    assert any("are allowed" in violation for violation in verdict.broken)


@pytest.mark.timeout(120)
def test_a_host_may_lock_limits_and_jobs_in_either_order(fleet: Fleet, chance: random.Random) -> None:
    verdict = host_locks.run(fleet, chance, rounds=20)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is one writer and no order to keep
@pytest.mark.timeout(120)
def test_recording_and_waiting_for_a_limit_in_one_transaction_deadlocks(fleet: Fleet, chance: random.Random) -> None:
    assert host_locks.run_unordered(fleet, chance, rounds=12).broken


@pytest.mark.pg_only
@pytest.mark.timeout(240)
def test_results_are_recorded_once_whether_or_not_their_commit_was_answered(
    fleet: Fleet, chance: random.Random
) -> None:
    verdict = commit_cuts.run(fleet, chance, cuts=40)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only
@pytest.mark.timeout(240)
def test_claims_whose_commit_was_not_answered_stay_when_nobody_hands_them_back(
    fleet: Fleet, chance: random.Random
) -> None:
    verdict = commit_cuts.run(fleet, chance, cuts=40, back_sec=15, sabotage="skip_claim_recovery")
    print(verdict)
    assert any("nobody runs it" in violation for violation in verdict.broken)
