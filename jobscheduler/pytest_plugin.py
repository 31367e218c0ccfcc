"""Fixtures for the test suites of sites. pytest finds them by itself where the wheel is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from jobs.models import Job
    from jobs.testing import TimeMachine

FIXTURES = {"drain_jobs", "inline_jobs", "assert_enqueued", "job_clock"}
MARK = ("transaction", "reset_sequences", "databases", "serialized_rollback", "available_apps")  # in its own order


def pytest_itemcollected(item: pytest.Item) -> None:
    """Which databases a test may use, and which are made at all, is decided by the marks, before any fixture."""
    if FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return
    from django.apps import apps

    if not (apps.ready and apps.is_installed("jobs")):
        return
    from jobs import db

    mark = item.get_closest_marker("django_db")
    given = {} if mark is None else {**dict(zip(MARK, mark.args, strict=False)), **mark.kwargs}
    databases = given.get("databases") or ["default"]
    if db.alias() != "default" and databases != "__all__":
        item.add_marker(pytest.mark.django_db(**{**given, "databases": [*databases, db.alias()]}), append=False)


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
