"""Fixtures for the test suites of sites. pytest finds them by itself where the wheel is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jobs.models import Job
    from jobs.testing import TimeMachine


@pytest.fixture
def drain_jobs(db: None) -> Callable[..., list[Job]]:
    """`drain_jobs()` runs all that is ready and returns the jobs that ran."""
    from jobs.testing import drain

    return drain


@pytest.fixture
def inline_jobs(db: None) -> Iterator[list[Job]]:
    """During the test a job that is enqueued runs at once; the list has the jobs that ran."""
    from jobs.testing import inline

    with inline() as ran:
        yield ran


@pytest.fixture
def assert_enqueued(db: None) -> Callable[..., Any]:
    """`assert_enqueued("shop.receipt", {"order": 7}, count=1)`."""
    from jobs import testing

    return testing.assert_enqueued


@pytest.fixture
def job_clock(db: None) -> Iterator[TimeMachine]:
    """`job_clock.advance(hours=1)` lets time pass for waiting jobs and for schedules."""
    from jobs.testing import time_travel

    with time_travel() as clock:
        yield clock
