"""For the test suites of sites: run what was enqueued, look at it, and let time pass.

from jobs.testing import assert_enqueued, drain, inline, time_travel
"""

from __future__ import annotations

from jobs.testing.asserting import assert_enqueued, assert_not_enqueued, enqueued
from jobs.testing.draining import JobFailed, context, drain, inline
from jobs.testing.travelling import TimeMachine, time_travel

__all__ = [
    "JobFailed",
    "TimeMachine",
    "assert_enqueued",
    "assert_not_enqueued",
    "context",
    "drain",
    "enqueued",
    "inline",
    "time_travel",
]
