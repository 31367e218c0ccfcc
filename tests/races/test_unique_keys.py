"""Processes submit unique jobs of a few keys at once, with workers running; the suite `unique` has a crowd of fifty."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, EventKind, Status
from tests.races.parallel import run_parallel
from tests.races.unique_keys import find_violations, without_indexes
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until

CROWD: dict[str, Any] = {"processes": 6, "share": 10, "keys": 4, "on_conflict": "return", "delay_sec": 0}
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
    answers = run_parallel(fleet.env, "crossing_unique_bulks", processes=4, rounds=10, size=100)["answers"]
    assert all(isinstance(answer, list) for answer in answers), answers
    assert find_violations() == []
    assert Job.objects.count() == 100
    assert len({tuple(sorted(answer)) for answer in answers}) == 1


def test_a_waiting_job_starts_after_the_transaction_that_got_it(fleet: Fleet) -> None:
    """On SQLite, the writer's lock does it."""
    from django.db import transaction

    item = {"job_type": "sample.work", "unique_key": "k"}
    first = job_services.submit({**item, "hold": True}).job
    fleet.start(settings=LONG_LEASE_SETTINGS)
    with transaction.atomic():
        job_services.release(first.pk)
    wait_until(lambda: Job.objects.get(pk=first.pk).status == Status.COMPLETED, 30, fleet.logs)
    assert job_services.submit(item).created
