"""Members that end in the same instant: the group ends once, and says so once.

That it takes the lock is shown by `python -m tests.chaos pairs-unlocked`: too few pairs would not meet every time.
"""

from __future__ import annotations

import random

from tests.chaos import pairs
from tests.worker.conftest import *  # noqa: F403 — fleets of real workers
from tests.worker.harness import Fleet


def test_two_members_that_end_at_once_end_their_group_once(fleet: Fleet, chance: random.Random) -> None:
    verdict = pairs.run(fleet, chance, groups=60)
    print(verdict)
    assert not verdict.broken, str(verdict)
