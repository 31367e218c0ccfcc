"""Members that end in the same instant: the group ends once, and is reported once."""

from __future__ import annotations

import random

import pytest

from tests.chaos import group_pairs
from tests.support.worker_processes import Fleet


def test_two_members_that_end_at_once_end_their_group_once(fleet: Fleet, chance: random.Random) -> None:
    verdict = group_pairs.run(fleet, chance, groups=60)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is only one writer at a time
def test_without_the_groups_lock_some_group_never_ends(fleet: Fleet, chance: random.Random) -> None:
    verdict = group_pairs.run(fleet, chance, groups=6, sabotage="skip_group_locks", slots=1)
    print(verdict)
    assert any("the groups ended as" in violation for violation in verdict.broken)
