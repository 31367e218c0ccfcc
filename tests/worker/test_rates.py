"""Rates over several workers, judged by what the handlers recorded outside of the database."""

from __future__ import annotations

import random

import pytest

from tests.chaos import rates
from tests.support.worker_processes import Fleet


@pytest.mark.timeout(240)
def test_four_workers_that_are_killed_start_no_more_than_the_rate_allows(fleet: Fleet, chance: random.Random) -> None:
    verdict = rates.run(fleet, chance, seconds=15)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is only one writer at a time
def test_a_rate_that_is_read_without_a_lock_is_exceeded(fleet: Fleet, chance: random.Random) -> None:
    verdict = rates.run(fleet, chance, seconds=10, kills=False, sabotage="skip_limit_locks")
    print(verdict)
    assert any("starts within" in violation for violation in verdict.broken)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("limited", [True, False])
def test_a_provider_sees_no_more_tokens_than_the_rate_allows(
    fleet: Fleet, chance: random.Random, limited: bool
) -> None:
    verdict = rates.run_tokens(fleet, chance, seconds=15, limited=limited)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only
def test_a_token_rate_that_is_read_without_a_lock_is_exceeded(fleet: Fleet, chance: random.Random) -> None:
    verdict = rates.run_tokens(fleet, chance, seconds=10, kills=False, sabotage="skip_limit_locks")
    print(verdict)
    assert any("tokens within" in violation for violation in verdict.broken)
