"""The contract of a `django.tasks` backend, clause by clause, with our own words around it."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from jobs.contrib.tasks import JobsBackend, JobsTask, compat
from jobs.contrib.tasks.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from jobs.contrib.tasks.compat import Task as StandardTask
from jobs.models import Job
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.testing import drain
from tests.sample_app import tasks
from tests.support.worker_processes import Fleet, wait_until

pytestmark = pytest.mark.django_db


def test_a_task_becomes_a_job_of_its_own_type_and_its_result_has_the_jobs_id() -> None:
    result = tasks.add.enqueue(1, b=2)
    job = Job.objects.get()
    assert (result.id, job.job_type) == (str(job.pk), "tests.sample_app.tasks.add")
    assert job.params["args"] == [1]
    assert job.params["kwargs"] == {"b": 2}
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.READY, [1], {"b": 2})
    assert (result.enqueued_at, result.started_at, result.finished_at) == (job.created_at, None, None)
    assert (result.backend, result.attempts, result.errors, result.is_finished) == ("default", 0, [], False)
    assert "tests.sample_app.tasks.add" in registry.names()


@pytest.mark.parametrize(
    ("enqueue", "value"),
    [
        (lambda: tasks.add.enqueue(1, b=2), 3),
        (lambda: tasks.add_later.enqueue(3, 4), 7),
        (lambda: tasks.echo.enqueue((1, 2), k={"x": None}), [[[1, 2]], {"k": {"x": None}}]),
        (lambda: tasks.nothing.enqueue(), None),
        (lambda: elsewhere.enqueue(), "elsewhere"),
    ],
    ids=["sync", "async", "tuples are lists", "a skip", "a module that workers do not import"],
)
def test_a_worker_runs_it_and_its_return_value_is_read_back(enqueue: Callable[[], Any], value: Any) -> None:
    result = enqueue()
    drain()
    result.refresh()
    assert (result.status, result.return_value, result.is_finished) == (TaskResultStatus.SUCCESSFUL, value, True)
    assert result.started_at == result.last_attempted_at <= result.finished_at
    assert (result.attempts, len(result.worker_ids)) == (1, 1)


def test_the_context_tells_the_attempt_and_opens_what_only_a_job_can() -> None:
    result = tasks.look.enqueue("sea")
    drain()
    found = tasks.look.get_result(result.id)
    assert found.return_value == {"attempt": 1, "id": result.id, "word": "sea", "job": result.id}
    assert Job.objects.get().progress_message == "sea"


def test_a_failure_is_retried_and_the_result_reads_the_whole_chain() -> None:
    result = tasks.fail.enqueue(2)
    drain()
    assert tasks.fail.get_result(result.id).status == TaskResultStatus.READY  # it waits out its backoff
    while Job.objects.filter(status=Status.QUEUED).exists():
        job_services.retry(result.id)
        drain()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [LookupError, LookupError]
    assert 'raise LookupError(f"attempt' in result.errors[0].traceback
    assert "attempt 2" in result.errors[1].traceback
    tail = Job.objects.get(status=Status.COMPLETED)
    assert task_backends["default"].get_result(str(tail.pk)).id == result.id


def test_a_failure_for_good_has_its_exception_and_no_return_value() -> None:
    results = [tasks.hopeless.enqueue(), tasks.fail_later.enqueue(), tasks.unspeakable.enqueue()]
    drain()
    for result, path in zip(
        results, ["jobs.errors.NoRetry", "builtins.LookupError", "builtins.TypeError"], strict=True
    ):
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert [error.exception_class_path for error in result.errors] == [path]
        with pytest.raises(ValueError, match="failed"):
            _ = result.return_value


def test_a_cancelled_task_has_failed_and_says_why() -> None:
    result = tasks.add.enqueue(1)
    job_services.cancel(result.id, reason="no longer wanted")
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 0)
    assert result.finished_at is not None
    (error,) = result.errors
    assert (error.exception_class_path, error.traceback) == ("jobs.errors.JobCancelled", "no longer wanted")


def test_a_paused_task_is_ready_to_be_executed_again() -> None:
    result = tasks.add.enqueue(1)
    job_services.pause(result.id)
    result.refresh()
    assert result.status == TaskResultStatus.READY


@pytest.mark.parametrize(("priority", "ours"), [(-100, 0), (-1, 49), (0, 50), (7, 53), (100, 100)])
def test_priority_is_mapped_and_the_original_is_kept(priority: int, ours: int) -> None:
    result = tasks.add.using(priority=priority).enqueue(1)
    assert Job.objects.get().priority == ours
    assert tasks.add.get_result(result.id).task.priority == priority


def test_a_larger_priority_runs_first() -> None:
    ids = [tasks.add.using(priority=priority).enqueue(1).id for priority in (-50, 60, 0)]
    drain()
    ran = [str(pk) for pk in Job.objects.order_by("run__started_at", "fence").values_list("pk", flat=True)]
    assert ran == [ids[1], ids[2], ids[0]]


def test_run_after_defers_and_must_be_aware() -> None:
    moment = timezone.now() + timedelta(hours=1)
    result = tasks.add.using(run_after=moment).enqueue(1)
    drain()
    result.refresh()
    assert (result.status, result.task.run_after) == (TaskResultStatus.READY, moment)
    assert Job.objects.get().not_before == moment
    with pytest.raises(InvalidTask):
        tasks.add.using(run_after=datetime(2030, 1, 1))


def test_a_queue_is_a_resource_and_must_be_one_of_the_backends() -> None:
    result = tasks.echo.enqueue()
    assert Job.objects.get().resource == "mail"
    assert tasks.echo.get_result(result.id).task.queue_name == "mail"
    with pytest.raises(InvalidTask):
        tasks.echo.using(queue_name="unheard-of")
    assert tasks.add.using(backend="press", queue_name="any").enqueue(1).task.queue_name == "any"


def test_a_backend_has_options_for_all_its_tasks_and_a_task_has_its_own() -> None:
    tasks.add.using(backend="press").enqueue(1)
    pressed = Job.objects.get()
    assert (pressed.max_retries, pressed.tenant) == (1, "press")
    result = tasks.print_all.using(max_retries=4, run_after=timezone.now()).enqueue()
    job = Job.objects.get(pk=result.id)
    assert (job.target, job.max_retries, job.max_runtime_sec, job.resource) == ("press", 4, 60, "printer")
    assert job.tags == ["a", "b"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"priority": 7, "queue_name": "mail", "run_after": timezone.now() + timedelta(hours=1)},
        {"tags": ["b", "a"], "max_retries": 4, "target": "x", "idempotency_key": "k"},
        {"deadline_at": timezone.now() + timedelta(days=1), "max_runtime_sec": 0.5, "tenant": "t", "resource": "r"},
        {"backend": "press", "token_limit": 9, "cost_units": 2},
    ],
    ids=lambda changes: ",".join(changes),
)
@pytest.mark.parametrize("declared", [tasks.add, tasks.print_all], ids=["plain", "with options"])
def test_a_result_has_the_task_that_was_enqueued_whatever_became_of_its_job(
    declared: Any, changes: dict[str, Any]
) -> None:
    task = declared.using(**changes)
    result = task.enqueue()
    found = task.get_result(result.id).task
    assert (result.task, found, len({task, result.task, found})) == (task, task, 1)
    job_services.update(result.id, {"tags": ["changed"], "priority": 1, "not_before": timezone.now()})
    assert task.get_result(result.id).task == task


def test_the_task_of_a_result_can_be_enqueued_elsewhere() -> None:
    for task in (tasks.add, tasks.print_all):
        again = task.enqueue().task.using(queue_name="mail").enqueue()
        assert (Job.objects.get(pk=again.id).resource, again.task.queue_name) == ("mail", "mail")
    both = tasks.add.using(queue_name="mail", resource="printer").enqueue()
    assert Job.objects.get(pk=both.id).resource == "printer"


def test_the_same_idempotency_key_gives_the_same_result() -> None:
    once = tasks.add.using(idempotency_key="k1")
    first = once.enqueue(1)
    drain()
    assert once.enqueue(1).id == first.id
    assert once.enqueue(1).status == TaskResultStatus.SUCCESSFUL


@pytest.mark.parametrize(
    "value", [{1, 2}, timezone.now(), Decimal("1.5"), object()], ids=["set", "time", "decimal", "x"]
)
def test_arguments_that_json_cannot_say_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        tasks.echo.enqueue(value)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: tasks.add.using(target="").enqueue(1),
        lambda: tasks.add.using(max_retries=-1).enqueue(1),
        lambda: tasks.add.using(priority=101),
        lambda: JobsTask(func=(lambda: None), **STANDARD),
        lambda: JobsTask(func=tasks.add.func, **{**STANDARD, "takes_context": True}),
    ],
    ids=["an empty target", "retries below 0", "a priority beyond 100", "a lambda", "no context to take"],
)
def test_what_cannot_be_a_task_is_refused_by_the_standards_name(wrong: Callable[[], Any]) -> None:
    with pytest.raises(InvalidTask):
        wrong()


@pytest.mark.parametrize("wrong", [{"run_after": timezone.now()}, {"colour": "red"}])
def test_the_decorator_refuses_what_it_does_not_know(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        tasks.task(**wrong)(tasks.add.func)
    if "colour" in wrong:
        with pytest.raises(TypeError):
            tasks.add.using(**wrong)


@pytest.mark.parametrize("result_id", ["", "no id", "019a0000-0000-7000-8000-000000000000", "x" * 500])
def test_an_unknown_result_does_not_exist(result_id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result_id)


def test_a_job_that_is_no_task_is_no_result_and_another_task_is_a_mismatch() -> None:
    job = job_services.enqueue("system.noop")
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(str(job.pk))
    with pytest.raises(TaskResultMismatch):
        tasks.echo.get_result(tasks.add.enqueue(1).id)


@pytest.mark.django_db(transaction=True)
def test_the_async_words_do_the_same() -> None:
    async def story() -> Any:
        result = await tasks.add.aenqueue(4, b=5)
        assert (await tasks.add.aget_result(result.id)).status == TaskResultStatus.READY
        with pytest.raises(TaskResultDoesNotExist):
            await task_backends["default"].aget_result(str(uuid4()))
        await sync_to_async(connections.close_all)()
        return result

    async def again() -> None:
        await result.arefresh()
        await sync_to_async(connections.close_all)()

    result = asyncio.run(story())
    drain()
    asyncio.run(again())
    assert result.return_value == 9


def test_the_signals_tell_of_each_step_with_the_result_as_it_is() -> None:
    with record_signals() as received:
        tasks.add.enqueue(1)
        drain()
    assert received == [("enqueued", "READY", 0, 0), ("started", "RUNNING", 1, 0), ("finished", "SUCCESSFUL", 1, 0)]


@pytest.mark.parametrize("task", [tasks.hopeless, tasks.fail_later], ids=["sync", "async"])
def test_the_end_of_a_failure_is_told_while_it_is_handled(task: Any) -> None:
    with record_signals() as received:
        task.enqueue()
        drain()
    assert received[-1] == ("finished", "FAILED", 1, 1, "NoRetry" if task is tasks.hopeless else "LookupError")


def test_an_attempt_that_will_be_retried_is_not_the_end() -> None:
    with record_signals() as received:
        tasks.fail.enqueue(1)
        drain()
    assert [item[0] for item in received] == ["enqueued", "started"]


def test_a_receiver_that_fails_does_not_fail_the_task() -> None:
    def broken(**kwargs: Any) -> None:
        raise RuntimeError("a receiver of the site's own")

    task_started.connect(broken)
    try:
        result = tasks.add.enqueue(1)
        drain()
    finally:
        task_started.disconnect(broken)
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL


def test_a_task_of_another_backend_may_be_sent_to_ours() -> None:
    with override_settings(TASKS={"default": {"BACKEND": IMMEDIATE}, "jobs": {"BACKEND": PATH}}):
        foreign = StandardTask(func=tasks.add.func, **STANDARD)
        result = foreign.using(backend="jobs").enqueue(2, 3)
        drain()
        result.refresh()
        assert (result.return_value, result.backend) == (5, "jobs")


def test_a_task_may_be_submitted_by_name_and_called_as_it_is() -> None:
    job = job_services.enqueue("tests.sample_app.tasks.add", {"args": [1, 1]})
    drain()
    assert tasks.add.get_result(str(job.pk)).return_value == 2
    assert tasks.add.call(2, 3) == tasks.add.func(2, 3) == 5


@pytest.mark.parametrize("signature", ["", "forged", "a:b"])
def test_nobody_but_the_site_itself_chooses_what_a_worker_imports(signature: str) -> None:
    fields = {"path": "antigravity.fly", "signature": signature}
    job = job_services.enqueue("django.task", fields)
    assert [(job.status, hasattr(job, "retried_by")) for job in drain()] == [(Status.FAILED, False)]
    assert "was not enqueued by this site" in Job.objects.get(pk=job.pk).status_reason
    assert "antigravity" not in sys.modules
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(str(job.pk))


def test_the_check_names_a_missing_app_and_an_unknown_option(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = JobsBackend("default", {"OPTIONS": {"colour": "red", "target": "x"}})
    assert [found.id for found in backend.check()] == ["jobs.E011"]
    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    assert "jobs.E010" in [found.id for found in backend.check()]


@pytest.mark.parametrize("name", ["InvalidTask", "InvalidTaskError"])
def test_the_error_of_the_package_is_found_by_its_old_and_by_its_new_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if find_spec("django.tasks"):
        pytest.skip("Django has the framework built in")
    exceptions = import_module("django_tasks.exceptions")
    for known in ("InvalidTask", "InvalidTaskError"):
        monkeypatch.delattr(exceptions, known, raising=False)
    monkeypatch.setattr(exceptions, name, LookupError, raising=False)
    assert runpy.run_path(str(compat.__file__))["InvalidTask"] is LookupError


def test_it_supports_all_that_the_standard_knows() -> None:
    backend = task_backends["default"]
    names = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert all(getattr(backend, name) for name in names)


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_process_runs_tasks(process_env: dict[str, str], tmp_path: Any) -> None:
    results = [tasks.add.enqueue(20, 22), tasks.add_later.enqueue(1, 1), elsewhere.enqueue()]
    with Fleet(process_env, tmp_path) as fleet:
        fleet.start()

        def all_finished() -> bool:
            for result in results:
                result.refresh()
            return all(result.is_finished for result in results)

        wait_until(all_finished, what=fleet.logs)
    assert [result.return_value for result in results] == [42, 2, "elsewhere"]


PATH = "jobs.contrib.tasks.JobsBackend"
IMMEDIATE = f"{StandardTask.__module__.rpartition('.')[0]}.backends.immediate.ImmediateBackend"
STANDARD = {"priority": 0, "backend": "default", "queue_name": "default", "run_after": None, "takes_context": False}


@tasks.task
def elsewhere() -> str:
    return "elsewhere"


@contextmanager
def record_signals() -> Iterator[list[tuple[Any, ...]]]:
    """What the signals said, in order; of a failure also the exception that was being handled."""
    received: list[tuple[Any, ...]] = []

    def receiver(name: str) -> Callable[..., None]:
        def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
            assert issubclass(sender, JobsBackend)
            kind = sys.exc_info()[0]
            facts = (name, str(task_result.status), task_result.attempts, len(task_result.errors))
            received.append(facts if kind is None else (*facts, kind.__name__))

        return receive

    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = {name: receiver(name) for name in signals}
    for name, signal in signals.items():
        signal.connect(receivers[name])
    try:
        yield received
    finally:
        for name, signal in signals.items():
            signal.disconnect(receivers[name])
