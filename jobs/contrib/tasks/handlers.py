"""The handlers of tasks: call the task's function and send the signals of Django's task framework.

A task is a job type of its own, named by its path. A task in a module that workers do not import at their start runs
as the job type `django.task`, with the path in its params.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.signing import BadSignature, Signer
from django.db import connections
from django.utils.module_loading import import_string

from jobs.conf import conf
from jobs.contrib.tasks.compat import Task, TaskResult, TaskResultStatus, normalize_json, task_finished, task_started
from jobs.contrib.tasks.task import JobsContext
from jobs.errors import NoRetry, Skip
from jobs.registry import Handler, HandlerOptions, job, registry
from jobs.states import Status, StopMode

GENERIC_JOB_TYPE = "django.task"
EXCEPTION_ARTIFACT = "exception"  # the artifact with the class of the exception that a task raised
REPORTED_STATUSES = frozenset({Status.FAILED, Status.CANCELLED, Status.SKIPPED})
_tasks: dict[str, Task[..., Any]] = {}


def register_task(task: Task[..., Any]) -> str:
    """Register the job type of a task in this process, and return its name."""
    path = task.module_path
    if path not in _tasks or _tasks[path].func is not task.func:
        _tasks[path] = task
        if is_autodiscovered(task.func.__module__):
            is_async = inspect.iscoroutinefunction(task.func)
            handler: Any = _build_async_handler(task) if is_async else _build_sync_handler(task)
            handler.__module__, handler.__qualname__ = task.func.__module__, task.func.__qualname__
            handler.__name__, handler.__doc__ = task.func.__name__, task.func.__doc__
            registry.add(Handler(handler, path, HandlerOptions()))
    return path if is_autodiscovered(task.func.__module__) else GENERIC_JOB_TYPE


def is_autodiscovered(module: str) -> bool:
    """Return whether every process of this site imports the module when it starts."""
    if not apps.ready:  # no job can be enqueued yet, so one unused job type does no harm
        return True
    return any(module == f"{app.name}.{name}" for app in apps.get_app_configs() for name in conf.AUTODISCOVER)


def list_job_types() -> list[str]:
    """Return the job types of the tasks that are registered in this process."""
    return [GENERIC_JOB_TYPE, *_tasks]


def get_task(path: str) -> Task[..., Any]:
    """Return a task that is registered in this process. Raise LookupError if it is not."""
    if path not in _tasks:
        raise LookupError(f"There is no task {path}.")
    return _tasks[path]


def load_task(path: str, signature: str) -> Task[..., Any]:
    """Return the task at a path, imported if necessary.

    The signature proves that `enqueue` wrote the path: a submission by other means cannot choose what is imported.
    Raise LookupError if it is wrong, or if there is no such task.
    """
    try:
        Signer(salt=GENERIC_JOB_TYPE).unsign(f"{path}:{signature}")
    except BadSignature:
        raise LookupError(f"{path} was not enqueued by this site.") from None
    if path not in _tasks:
        try:
            _tasks[path] = import_string(path)
        except ImportError as error:
            raise LookupError(f"There is no task {path}.") from error
    return _tasks[path]


def sign_path(path: str) -> str:
    return Signer(salt=GENERIC_JOB_TYPE).signature(path)


@job(GENERIC_JOB_TYPE)
def run_task(
    ctx: Any,
    path: str,
    signature: str,
    args: list[Any] = [],  # noqa: B006
    kwargs: dict[str, Any] = {},  # noqa: B006
    task: Any = None,
) -> Any:
    """Run a task of `django.tasks` that this site has enqueued, wherever it is defined."""
    try:
        loaded = load_task(path, signature)
    except LookupError as error:
        raise NoRetry(str(error)) from None
    with _send_signals(loaded, ctx) as result:
        return _set_return_value(result, loaded.call(*_build_arguments(loaded, ctx, result, args), **kwargs))


def _build_sync_handler(declared: Task[..., Any]) -> Any:
    def call(ctx: Any, args: list[Any] = [], kwargs: dict[str, Any] = {}, task: Any = None) -> Any:  # noqa: B006
        with _send_signals(declared, ctx) as result:
            return _set_return_value(result, declared.func(*_build_arguments(declared, ctx, result, args), **kwargs))

    return call


def _build_async_handler(declared: Task[..., Any]) -> Any:
    async def call(ctx: Any, args: list[Any] = [], kwargs: dict[str, Any] = {}, task: Any = None) -> Any:  # noqa: B006
        signals = _send_signals(declared, ctx)
        result = await sync_to_async(_enter_with_fresh_connections)(signals)
        try:
            arguments = _build_arguments(declared, ctx, result, args)
            value = _set_return_value(result, await declared.func(*arguments, **kwargs))
        except BaseException as error:
            # Shielded: a second cancellation must not prevent the signal.
            await asyncio.shield(sync_to_async(signals.__exit__)(type(error), error, error.__traceback__))
            raise
        await sync_to_async(signals.__exit__)(None, None, None)
        return value

    return call


def _enter_with_fresh_connections(signals: Any) -> TaskResult[Any]:
    """Enter the context manager in asgiref's thread for the database, whose connections are closed nowhere else."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
    result: TaskResult[Any] = signals.__enter__()
    return result


def _build_arguments(task: Task[..., Any], ctx: Any, result: TaskResult[Any], args: list[Any]) -> list[Any]:
    return [JobsContext(task_result=result, job=ctx), *args] if task.takes_context else args


def _set_return_value(result: TaskResult[Any], value: Any) -> Any:
    """Set and return the value as JSON. Raise if it is none: then the task has failed."""
    clean = normalize_json(value)
    object.__setattr__(result, "_return_value", clean)
    return clean


@contextmanager
def _send_signals(task: Task[..., Any], ctx: Any) -> Iterator[TaskResult[Any]]:
    """Send `task_started`, and `task_finished` if the outcome is final.

    The latter is sent within the except block, where loggers find the exception. An outcome that the handler cannot
    know to be final is reported by `send_task_finished`, when it is recorded.
    """
    from jobs.contrib.tasks import results  # loads the models

    chain = [] if ctx.job_id is None else results.load_chain(ctx.job_id)
    result = results.build_result(chain) if chain else results.build_direct_result(task, ctx.params)
    sender = type(task.get_backend())
    task_started.send_robust(sender, task_result=result)
    try:
        yield result
    except Skip:
        if not _has_lost_lease(ctx):
            results.set_final_state(result, TaskResultStatus.SUCCESSFUL)
            task_finished.send_robust(sender, task_result=result)
        raise
    except BaseException as error:
        if ctx.cancelled and ctx.stop_mode != StopMode.CANCEL:  # paused, handed back, timed out, or its lease is lost
            raise
        ctx.artifact(EXCEPTION_ARTIFACT, f"{type(error).__module__}.{type(error).__qualname__}")
        if not chain or _is_last_attempt(chain[-1], ctx, error):
            results.set_final_state(result, TaskResultStatus.FAILED, error)
            task_finished.send_robust(sender, task_result=result)
        raise
    if not _has_lost_lease(ctx) and not ctx.is_over_token_limit:
        results.set_final_state(result, TaskResultStatus.SUCCESSFUL)
        task_finished.send_robust(sender, task_result=result)


def _is_last_attempt(row: Any, ctx: Any, error: BaseException) -> bool:
    """Return whether no retry will follow: a task that is retried is not finished."""
    from jobs.services.execution import has_retry

    if ctx.stop_mode == StopMode.CANCEL or ctx.is_over_token_limit:
        return True
    return not has_retry(row, error)


def _has_lost_lease(ctx: Any) -> bool:
    """Return whether another process has finished the job or runs it again, so that this outcome is not recorded."""
    from jobs.models import Job

    if not ctx.cancelled or ctx.job_id is None:
        return False
    return not Job.objects.filter(pk=ctx.job_id, status=Status.RUNNING, fence=ctx.fence).exists()


def send_task_finished(*, job_id: UUID, job_type: str, status: str, retried_by: UUID | None, **_facts: Any) -> None:
    """Send `task_finished`, unless the handler's own thread has sent it or a retry follows.

    It covers the outcomes that no handler reports: cancelled or skipped before the start, timed out, lost with its
    worker. Called after the commit, by the process that recorded the outcome.
    """
    if status not in REPORTED_STATUSES or retried_by is not None or job_type not in list_job_types():
        return
    from jobs.contrib.tasks import results

    chain = results.load_chain(job_id)
    if chain and not results.was_sent_by_handler(chain[-1]):
        result = results.build_result(chain)
        task_finished.send_robust(type(result.task.get_backend()), task_result=result)
