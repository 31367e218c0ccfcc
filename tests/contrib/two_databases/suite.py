"""The suite of a site whose queue has a database of its own. Run by `test_testing_two_databases.py`."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.test import TestCase
from django.test.testcases import DatabaseOperationForbidden

from jobs import job
from jobs.models import Job
from jobs.states import Status
from jobs.testing import drain
from tests.sample_app import jobs as sample

pytest_plugins = ["jobscheduler.pytest_plugin"]


@job("two.clash", max_retries=0)
def clash() -> None:
    get_user_model().objects.create(username="twice")
    get_user_model().objects.create(username="twice")


class InATestCase(TestCase):
    databases = {"default", "queue"}

    def test_a_handler_that_breaks_the_sites_own_transaction_fails_alone(self) -> None:
        clash.enqueue()
        (ran,) = drain()
        assert (ran.status, "IntegrityError" in ran.run.error) == (Status.FAILED, True)
        assert get_user_model().objects.count() == 0


def test_a_fixture_brings_the_database_of_the_jobs_along(drain_jobs: Any, assert_enqueued: Any) -> None:
    sample.add.enqueue(a=1, b=2)
    assert assert_enqueued(sample.add)._state.db == "queue"
    assert [job.status for job in drain_jobs()] == [Status.COMPLETED]
    assert get_user_model().objects.count() == 0


@pytest.mark.django_db
def test_so_it_does_beside_a_mark(inline_jobs: list[Job], client: Any) -> None:
    clash.enqueue()
    assert [job.status for job in inline_jobs] == [Status.FAILED]
    assert get_user_model().objects.count() == 0


@pytest.mark.django_db(True, databases=["default"])
def test_what_a_mark_says_else_stays_said(drain_jobs: Any) -> None:
    clash.enqueue()
    assert [job.status for job in drain_jobs()] == [Status.FAILED]
    assert not any(connections[alias].in_atomic_block for alias in ("default", "queue"))
    assert get_user_model().objects.count() == 1


@pytest.mark.django_db(databases="__all__")
def test_a_mark_for_all_databases_is_enough(job_clock: Any, drain_jobs: Any) -> None:
    sample.add.enqueue(a=1, b=2)
    job_clock.advance(hours=1)
    assert len(drain_jobs()) == 1


@pytest.mark.django_db
def test_without_a_fixture_django_names_the_database_that_the_mark_lacks() -> None:
    with pytest.raises(DatabaseOperationForbidden, match="'queue'"):
        drain()
