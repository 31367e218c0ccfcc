"""Fixtures for the test suites of sites, registered as a pytest plugin by the installed package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from jobscheduler import find_shadow

if TYPE_CHECKING:
    from jobs.models import Job
    from jobs.testing import TimeMachine

FIXTURES = {"drain_jobs", "inline_jobs", "assert_enqueued", "job_clock"}
# in the order of pytest-django's mark
DJANGO_DB_ARGUMENTS = ("transaction", "reset_sequences", "databases", "serialized_rollback", "available_apps")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the jobs' database to the mark of a test that uses our fixtures.

    pytest-django decides by the marks, before any fixture, which databases are created and which a test may use.
    """
    if FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return
    from django.apps import apps

    if not (apps.ready and apps.is_installed("jobs")) or find_shadow(["jobs"]):
        return
    from jobs import db

    mark = item.get_closest_marker("django_db")
    arguments = {} if mark is None else {**dict(zip(DJANGO_DB_ARGUMENTS, mark.args, strict=False)), **mark.kwargs}
    databases = arguments.get("databases") or ["default"]
    if db.alias() != "default" and databases != "__all__":
        item.add_marker(pytest.mark.django_db(**{**arguments, "databases": [*databases, db.alias()]}), append=False)


@pytest.fixture
def drain_jobs(db: None) -> Callable[..., list[Job]]:
    """Return a function: `drain_jobs()` runs all ready jobs and returns them."""
    from jobs.testing import drain

    return drain


@pytest.fixture
def inline_jobs(db: None) -> Iterator[list[Job]]:
    """Run each job when it is enqueued, during the test; return the list of the jobs that ran."""
    from jobs.testing import inline

    with inline() as ran:
        yield ran


@pytest.fixture
def assert_enqueued(db: None) -> Callable[..., Any]:
    """Return a function: `assert_enqueued("shop.receipt", {"order": 7}, count=1)`."""
    from jobs import testing

    return testing.assert_enqueued


@pytest.fixture
def job_clock(db: None) -> Iterator[TimeMachine]:
    """Return a clock: `job_clock.advance(hours=1)` lets time pass for waiting jobs and for schedules."""
    from jobs.testing import time_travel

    with time_travel() as clock:
        yield clock
