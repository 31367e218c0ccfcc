"""Processes submit unique jobs of a few keys at once, with workers running; the suite `unique` has a crowd of fifty."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from django.db import connection, transaction

from jobs import db
from jobs.engine.sql.claim import renew_leases
from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, EventKind, Status
from tests.races.parallel import run_parallel
from tests.races.unique_keys import find_violations, without_indexes
from tests.support import executor
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until

T = TypeVar("T")
CROWD: dict[str, Any] = {"processes": 4, "share": 10, "keys": 3, "on_conflict": "return", "delay_sec": 0}
SUBMISSIONS = CROWD["processes"] * CROWD["share"]


def run_crowd(fleet: Fleet, **plan: Any) -> list[dict[str, Any]]:
    answers = run_parallel(fleet.env, "unique_keys", **{**CROWD, **plan})["answers"]
    assert all(isinstance(answer, list) for answer in answers), answers
    return [submission for answer in answers for submission in answer]


@pytest.mark.parametrize("until", ["start", "end"])
def test_never_two_jobs_of_one_key(fleet: Fleet, until: str) -> None:
    fleet.start_many(2, "--concurrency=4", settings=LONG_LEASE_SETTINGS)

    submissions = run_crowd(fleet, until=until)

    live = Job.objects.exclude(status__in=sorted(TERMINAL))
    wait_until(lambda: not live.exists(), 60, fleet.logs)
    assert find_violations() == []
    assert len(submissions) == SUBMISSIONS
    created = {submission["job"] for submission in submissions if submission["created"]}
    keys = {str(job.pk): job.unique_key for job in Job.objects.all()}
    assert created == set(keys), "a job was made that no submission got"
    assert all(keys[submission["job"]] == submission["key"] for submission in submissions)
    assert CROWD["keys"] <= len(created) < SUBMISSIONS
    assert not Job.objects.exclude(status=Status.COMPLETED).exists()


@pytest.mark.parametrize("until", ["start", "end"])
def test_without_the_indexes_the_same_crowd_makes_two(fleet: Fleet, until: str) -> None:
    with without_indexes():
        run_crowd(fleet, until=until)
        assert find_violations()


@pytest.mark.parametrize("until", ["start", "end"])
def test_the_last_replacement_wins_and_there_is_one_job(fleet: Fleet, until: str) -> None:
    fleet.start("--concurrency=4", settings=LONG_LEASE_SETTINGS)

    submissions = run_crowd(fleet, until=until, share=4, keys=1, on_conflict="replace", delay_sec=600)

    (job,) = Job.objects.all()
    assert {submission["job"] for submission in submissions} == {str(job.pk)}
    assert [submission["created"] for submission in submissions].count(True) == 1
    updates = list(JobEvent.objects.filter(job=job, kind=EventKind.UPDATED).order_by("id"))
    assert len(updates) == len(submissions) - 1
    assert job.params == updates[-1].data["new"]["params"]
    for before, after in pairwise(updates):
        assert after.data["old"]["params"] == before.data["new"]["params"], "a replacement was lost"


def test_crossing_bulks_of_unique_keys_do_not_deadlock(fleet: Fleet) -> None:
    answers = run_parallel(fleet.env, "crossing_unique_bulks", processes=4, rounds=4, size=60)["answers"]
    assert all(isinstance(answer, list) for answer in answers), answers
    assert find_violations() == []
    assert Job.objects.count() == 240
    assert len({tuple(sorted(answer)) for answer in answers}) == 1


@pytest.mark.pg_only  # on SQLite the caller's transaction has the write lock
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("on_conflict", ["return", "replace"])
def test_a_waiting_job_starts_after_the_transaction_that_got_it(on_conflict: str) -> None:
    item = {"job_type": "sample.work", "unique_key": "k", "on_conflict": on_conflict}
    first = job_services.submit(item).job
    with transaction.atomic():
        assert job_services.submit({**item, "params": {"number": 1}}).job.pk == first.pk
        assert run_elsewhere(executor.claim_next) is None
    assert run_elsewhere(executor.claim_next) == first


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
def test_a_running_job_that_is_returned_can_be_renewed_meanwhile() -> None:
    item = {"job_type": "sample.work", "unique_key": "k", "unique_until": "end"}
    job_services.submit(item)
    running = executor.claim_next()
    assert running is not None
    assert running.lease_token is not None
    leases = [(running.pk, running.lease_token)]
    with transaction.atomic():
        assert job_services.submit(item).job.pk == running.pk
        assert list(run_elsewhere(lambda: renew_leases(db.connection(), leases, 30.0))) == [running.pk]


def run_elsewhere(function: Callable[[], T]) -> T:
    """Call a function in another thread, on a connection of its own."""

    def call() -> T:
        try:
            return function()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
