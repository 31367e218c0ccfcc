"""The helpers for the suites of sites, used as a site would use them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import TestCase
from django.utils import timezone

from jobs import enqueue, enqueue_many, group, job
from jobs.contrib.tasks.compat import Task as StandardTask
from jobs.models import Job, JobLog
from jobs.states import Status
from jobs.testing import (
    JobFailed,
    TimeMachine,
    assert_enqueued,
    assert_not_enqueued,
    context,
    drain,
    enqueued,
    inline,
    time_travel,
)
from schedules import services as schedules
from tests.sample_app import jobs as sample
from tests.sample_app import tasks

pytest_plugins = ["jobscheduler.pytest_plugin"]
pytestmark = pytest.mark.django_db


@job("testing.follow")
def follow(depth: int) -> int:
    """A handler that enqueues, as many do."""
    if depth:
        follow.enqueue(depth=depth - 1)
    return depth


@job("testing.clash", max_retries=0)
def clash() -> None:
    """Breaks the transaction that it is in."""
    get_user_model().objects.create(username="twice")
    get_user_model().objects.create(username="twice")


@job("testing.like_a_task")
def like_a_task(args: list[Any], kwargs: dict[str, Any], task: Any) -> None:
    """Has the params of a task, and is none."""


@tasks.task
def elsewhere(*args: Any, **kwargs: Any) -> list[Any]:
    """A task in a module that workers do not import by themselves."""
    return [list(args), kwargs]


DEFAULTS = {"priority": 0, "backend": "default", "queue_name": "default", "run_after": None, "takes_context": False}
STANDARD = StandardTask(func=tasks.add.func, **DEFAULTS)


class InATestCase(TestCase):
    def test_jobs_run_in_the_tests_own_transaction(self) -> None:
        sample.add.enqueue(a=1, b=2)
        (ran,) = drain()
        assert (ran.status, ran.run.artifacts) == (Status.COMPLETED, {"result": 3})


def test_drain_runs_all_that_is_ready_in_order_and_what_follows_from_it() -> None:
    low = sample.add.using(priority="LOW").enqueue(a=1, b=1)
    high = sample.add.using(priority="HIGH").enqueue(a=2, b=2)
    follow.enqueue(depth=2)
    later = sample.add.using(not_before=timezone.now() + timedelta(hours=1)).enqueue(a=3, b=3)
    ran = drain()
    assert ran[0].pk == high.pk
    assert low.pk in {call.pk for call in ran}
    assert [call.params["depth"] for call in ran if call.job_type == "testing.follow"] == [2, 1, 0]
    assert Job.objects.get(pk=later.pk).status == Status.QUEUED
    assert drain() == []


def test_drain_says_what_failed_and_raises_it_only_if_asked() -> None:
    sample.hopeless.enqueue()
    assert [job.status for job in drain()] == [Status.FAILED]
    sample.hopeless.enqueue()
    with pytest.raises(JobFailed, match="it would only happen again") as failed:
        drain(raise_failures=True)
    assert failed.value.job.status == Status.FAILED


def test_a_handler_that_breaks_its_transaction_fails_alone() -> None:
    clash.enqueue()
    (ran,) = drain()
    assert (ran.status, "IntegrityError" in ran.run.error) == (Status.FAILED, True)
    assert get_user_model().objects.count() == 0


def test_drain_runs_async_handlers_keeps_logs_and_obeys_lanes_and_groups() -> None:
    sample.nap.enqueue(seconds=0)
    sample.talk.enqueue(lines=1)
    group([sample.add.s(a=1, b=1), sample.add.s(a=2, b=2)], mode="sequential").enqueue()
    for number in range(2):
        sample.work.using(target="book").enqueue(number=number)
    ran = drain()
    assert {call.status for call in ran} == {Status.COMPLETED}
    assert [call.run.artifacts["result"] for call in ran if call.target] == [0, 1]
    assert [call.group_index for call in ran if call.group_id] == [0, 1]
    assert JobLog.objects.filter(message="line 0").exists()


@pytest.mark.parametrize(
    "submit",
    [lambda: sample.add.enqueue(a=1, b=2), lambda: enqueue("sample.add", {"a": 1, "b": 2})],
    ids=["handler", "by name"],
)
def test_inline_runs_a_job_before_enqueue_returns(submit: Callable[[], Job]) -> None:
    with inline() as ran:
        made = submit()
        assert made.status == Status.COMPLETED
    assert [call.pk for call in ran] == [made.pk]
    assert submit().status == Status.QUEUED


def test_inline_runs_bulks_groups_and_what_handlers_enqueue() -> None:
    with inline() as ran:
        enqueue_many([{"job_type": "sample.add", "params": {"a": n, "b": 0}} for n in range(3)])
        assert len(ran) == 3
        follow.enqueue(depth=3)
        assert len(ran) == 7
        group([sample.add.s(a=1, b=1)]).enqueue()
    assert len(ran) == 8


def test_inline_raises_what_failed_if_asked() -> None:
    with pytest.raises(JobFailed), inline(raise_failures=True):
        sample.hopeless.enqueue()
    assert sample.add.enqueue(a=1, b=1).status == Status.QUEUED


def test_assert_enqueued_finds_by_type_params_and_fields_and_shows_what_there_is() -> None:
    sample.add.using(target="book-1", priority="HIGH").enqueue(a=1, b=2)
    assert assert_enqueued(sample.add, {"a": 1, "b": 2}, target="book-1", priority="HIGH", count=1).priority == 75
    assert assert_enqueued("sample.add") == assert_enqueued()
    assert_not_enqueued(sample.noop)
    for wrong in ({"params": {"a": 1}}, {"target": "book-2"}, {"count": 2}):
        with pytest.raises(AssertionError, match=r"sample.add \{'a': 1, 'b': 2\} target='book-1' QUEUED"):
            assert_enqueued(sample.add, **wrong)
    with pytest.raises(AssertionError, match="1 enqueued, expected 0"):
        assert_not_enqueued(sample.add)


def test_assert_enqueued_can_expect_none_and_then_returns_none() -> None:
    assert assert_enqueued(sample.add, count=0) is None
    sample.add.enqueue(a=1, b=2)
    with pytest.raises(AssertionError, match=r"sample.add \(\): 1 enqueued, expected 0"):
        assert_enqueued(sample.add, count=0)


@pytest.mark.parametrize("asked", [assert_enqueued, assert_not_enqueued, enqueued])
def test_a_field_that_jobs_do_not_have_is_refused_with_those_that_they_have(asked: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"a job has no field 'colour'; it has addon_id, .*target, .*tenant"):
        asked(sample.add, colour="red")
    with pytest.raises(TypeError, match="a job type is a name, a handler or a task, not 7"):
        asked(7)


@pytest.mark.parametrize("task", [tasks.echo, elsewhere], ids=["in tasks.py", "elsewhere"])
def test_a_task_is_found_by_itself_or_by_its_path_and_by_what_it_was_called_with(task: Any) -> None:
    task.enqueue(7, (1, 2), to="anna")
    called = {"args": [7, (1, 2)], "kwargs": {"to": "anna"}}
    for name in (task, task.using(priority=3), task.module_path):
        assert assert_enqueued(name, called, count=1) == assert_enqueued(name, resource=task.queue_name)
        for others in ({"args": [7]}, {"kwargs": {"to": "anna"}}, {"to": "anna"}):
            assert_not_enqueued(name, others)
    assert_not_enqueued(tasks.add)
    task.enqueue(8)
    assert_enqueued(task, {"args": [8]}, count=1)
    shown = rf"{task.module_path} \{{'args': \[7, \[1, 2\]\], 'kwargs': {{'to': 'anna'}}\}} target=None QUEUED"
    with pytest.raises(AssertionError, match=shown):
        assert_enqueued(task, {"args": [9]})
    assert {job.status for job in drain(raise_failures=True)} == {Status.COMPLETED}


def test_a_task_of_the_standard_itself_is_found() -> None:
    STANDARD.enqueue(1, b=2)
    assert_enqueued(STANDARD, {"args": [1], "kwargs": {"b": 2}}, count=1)
    assert_enqueued(tasks.add, Job.objects.get().params, count=1)


def test_params_of_a_handler_are_compared_whole() -> None:
    like_a_task.enqueue(args=[1], kwargs={}, task={})
    assert_not_enqueued(like_a_task, {"args": [1], "kwargs": {}})
    assert_enqueued(like_a_task, {"args": [1], "kwargs": {}, "task": {}})


def test_inline_runs_tasks_at_once() -> None:
    with inline() as ran:
        assert tasks.add.enqueue(1, b=2).return_value == 3
        assert elsewhere.enqueue(1).return_value == [[1], {}]
    assert len(ran) == 2


def test_retries_are_nobodys_submissions_and_run_when_their_time_has_passed() -> None:
    sample.fail.enqueue(times=2)
    with time_travel() as clock:
        assert len(drain()) == 1
        clock.advance(seconds=9)
        assert drain() == []
        clock.advance(seconds=2)
        assert len(drain()) == 1
        clock.advance(minutes=1)
        assert [job.status for job in drain()] == [Status.COMPLETED]
    assert_enqueued(sample.fail, count=1)


def test_time_travel_fires_each_due_time_on_the_way_once() -> None:
    schedules.create({"name": "hourly", "cron": "0 * * * *", "job_type": "sample.add", "params": {"a": 1, "b": 1}})
    with time_travel() as clock:
        clock.advance(hours=3)
        fired = [job.fire_time for job in drain()]
        assert len(fired) == len(set(fired)) == 3
        clock.advance(timedelta(hours=1))
        assert len(drain()) == 1
        clock.to(clock.now + timedelta(hours=2))
        assert len(drain()) == 2
        with pytest.raises(ValueError, match="back"):
            clock.to(datetime(2000, 1, 1, tzinfo=UTC))


def test_a_handler_is_called_with_a_context_of_ones_own() -> None:
    ctx = context(resume_from=2)
    assert sample.count(ctx, upto=4) == 4
    assert ctx.take_writes().checkpoint == (4,)


def test_the_fixtures_of_the_plugin_are_the_same_helpers(
    drain_jobs: Any, assert_enqueued: Any, job_clock: TimeMachine
) -> None:
    sample.add.using(not_before=timezone.now() + timedelta(hours=1)).enqueue(a=1, b=1)
    assert assert_enqueued("sample.add").status == Status.QUEUED
    assert drain_jobs() == []
    job_clock.advance(hours=1, seconds=1)
    assert len(drain_jobs()) == 1


def test_the_inline_fixture_runs_at_once(inline_jobs: list[Job]) -> None:
    assert sample.add.enqueue(a=1, b=1).status == Status.COMPLETED
    assert len(inline_jobs) == 1


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction_each_job_commits_as_it_does_in_a_worker() -> None:
    clash.enqueue()
    sample.add.enqueue(a=1, b=1)
    assert [job.status for job in drain()] == [Status.FAILED, Status.COMPLETED]
    assert get_user_model().objects.count() == 1  # what a failed handler wrote before, stays
    assert not connection.in_atomic_block
