"""The settings of the tests, with a qcluster that looks at its schedules at once and not only after half a minute."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import Q_CLUSTER

Q_CLUSTER = {**Q_CLUSTER, "guard_cycle": 30, "poll": 0.1}
