"""Many processes at once, judged by the ledger outside the database; and judges that notice what is wrong."""

from __future__ import annotations

import random

import pytest

from tests.chaos import kills, lanes, many_workers
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet


def test_four_workers_keep_lanes_in_order_and_every_limit(fleet: Fleet, chance: random.Random) -> None:
    verdict = many_workers.run(fleet, chance, jobs=400, lanes=20)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is only one writer at a time: a count cannot grow old
def test_limits_that_are_counted_without_a_lock_are_exceeded(fleet: Fleet, chance: random.Random) -> None:
    often = {**LONG_LEASE_SETTINGS, "POLL_SEC": 0.02}
    verdict = many_workers.run(
        fleet, chance, jobs=150, lanes=40, longest_sec=0.1, settings=often, sabotage="skip_limit_locks"
    )
    print(verdict)
    assert any("are allowed" in violation for violation in verdict.broken)


def test_lanes_that_run_backwards_are_noticed(fleet: Fleet, chance: random.Random) -> None:
    verdict = many_workers.run(fleet, chance, jobs=60, lanes=3, sabotage="reverse_targets")
    print(verdict)
    assert any("not in the order" in violation for violation in verdict.broken)


def test_eight_processes_that_do_everything_to_lanes_break_none(fleet: Fleet, chance: random.Random) -> None:
    verdict = lanes.run(fleet, chance, seconds=5)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.timeout(240)
def test_a_storm_of_kills_and_freezes_loses_nothing(fleet: Fleet, chance: random.Random) -> None:
    verdict = kills.run(fleet, chance, jobs=120, seconds=8)
    print(verdict)
    assert not verdict.broken, str(verdict)
