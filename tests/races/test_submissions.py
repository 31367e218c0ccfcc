"""Submitting against submitting, and against the caller's own commit."""

from __future__ import annotations

import pytest

from jobs.models import Job, JobEvent
from jobs.states import EventKind
from tests.races.parallel import run_parallel


@pytest.mark.parametrize("first_is_taken_back", [False, True])
def test_twenty_concurrent_submissions_with_one_key_make_one_job(
    process_env: dict[str, str], first_is_taken_back: bool
) -> None:
    crowd = run_parallel(process_env, "one_key", processes=20, bodies=1, first_is_taken_back=first_is_taken_back)
    (job,) = Job.objects.all()
    answers = crowd["answers"][1:] if first_is_taken_back else crowd["answers"]
    assert {answer.get("job") for answer in answers} == {str(job.pk)}, answers
    assert JobEvent.objects.filter(kind=EventKind.SUBMITTED).count() == 1


def test_of_twenty_submissions_with_one_key_those_that_say_something_else_are_refused(
    process_env: dict[str, str],
) -> None:
    crowd = run_parallel(process_env, "one_key", processes=20, bodies=2, first_is_taken_back=False)
    (job,) = Job.objects.all()
    for answer in crowd["answers"]:
        same = answer["number"] == job.params["number"]
        assert answer == {"number": answer["number"], **({"job": str(job.pk)} if same else {"refused": True})}


def test_two_bulks_sharing_keys_in_opposite_order_do_not_deadlock(process_env: dict[str, str]) -> None:
    rounds, size = 10, 300
    crowd = run_parallel(process_env, "crossing_bulks", processes=2, rounds=rounds, size=size)
    forwards, backwards = crowd["answers"]
    assert forwards == backwards
    assert len(forwards) == Job.objects.count() == rounds * size


@pytest.mark.parametrize("commits", [True, False])
def test_a_job_is_invisible_until_its_caller_commits(process_env: dict[str, str], commits: bool) -> None:
    submitter, looker = run_parallel(process_env, "uncommitted", processes=2, commits=commits)["answers"]
    found = [submitter["job"]] if commits else []
    assert looker == {"before": {"seen": [], "claimed": []}, "after": {"seen": found, "claimed": found}}


def test_eight_concurrent_retries_of_one_job_make_one_successor(process_env: dict[str, str]) -> None:
    crowd = run_parallel(process_env, "retry_at_once", processes=8, target="book-1")
    first = Job.objects.get(pk=crowd["staged"]["job"])
    successor = first.retried_by
    made = [answer["made"] for answer in crowd["answers"] if "made" in answer]
    assert made == [str(successor.pk)]
    assert {answer["tail"] for answer in crowd["answers"] if "tail" in answer} == set(made)
    assert first.events.filter(kind=EventKind.RETRY_CREATED).count() == 1
