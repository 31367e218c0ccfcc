"""The handler of each task: calls its function and tells the standard's signals.

A task is a job type of its own, by its path. One in a module that a worker does not import by itself runs as
`django.task`, which is told the path.
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
from jobs.registry import Handler, Options, job, registry
from jobs.states import Cause, Status, StopMode

ANYWHERE = "django.task"
EXCEPTION = "exception"  # the artifact that keeps the class of what a task raised
REPORTED = frozenset({Status.FAILED, Status.CANCELLED, Status.SKIPPED})
_known: dict[str, Task[..., Any]] = {}


def job_type(task: Task[..., Any]) -> str:
    """What jobs of this task are called. Makes it known to this process."""
    path = task.module_path
    if path not in _known or _known[path].func is not task.func:
        _known[path] = task
        if is_found_by_workers(task.func.__module__):
            made: Any = _async_handler(task) if inspect.iscoroutinefunction(task.func) else _sync_handler(task)
            made.__module__, made.__qualname__ = task.func.__module__, task.func.__qualname__
            made.__name__, made.__doc__ = task.func.__name__, task.func.__doc__
            registry.add(Handler(made, path, Options()))
    return path if is_found_by_workers(task.func.__module__) else ANYWHERE


def is_found_by_workers(module: str) -> bool:
    """Whether every process of this site imports the module when it starts."""
    if not apps.ready:  # nobody enqueues yet, so being known under one name more does no harm
        return True
    return any(module == f"{app.name}.{name}" for app in apps.get_app_configs() for name in conf.AUTODISCOVER)


def job_types() -> list[str]:
    """What jobs of the tasks that this process knows are called."""
    return [ANYWHERE, *_known]


def known(path: str) -> Task[..., Any]:
    """A task that this process has met; LookupError, if it has not."""
    if path not in _known:
        raise LookupError(f"There is no task {path}.")
    return _known[path]


def find(path: str, signature: str) -> Task[..., Any]:
    """The task at a path, imported if need be. Only what `enqueue` has signed: nobody else chooses what we import."""
    try:
        Signer(salt=ANYWHERE).unsign(f"{path}:{signature}")
    except BadSignature:
        raise LookupError(f"{path} was not enqueued by this site.") from None
    if path not in _known:
        try:
            _known[path] = import_string(path)
        except ImportError as error:
            raise LookupError(f"There is no task {path}.") from error
    return _known[path]


def signature(path: str) -> str:
    return Signer(salt=ANYWHERE).signature(path)


@job(ANYWHERE)
def anywhere(
    ctx: Any,
    path: str,
    signature: str,
    args: list[Any] = [],  # noqa: B006
    kwargs: dict[str, Any] = {},  # noqa: B006
    task: Any = None,
) -> Any:
    """Runs a task of `django.tasks` that this site has enqueued, wherever it is defined."""
    try:
        found = find(path, signature)
    except LookupError as error:
        raise NoRetry(str(error)) from None
    with _told(found, ctx) as result:
        return _kept(result, found.call(*_arguments(found, ctx, result, args), **kwargs))


def _sync_handler(declared: Task[..., Any]) -> Any:
    def call(ctx: Any, args: list[Any] = [], kwargs: dict[str, Any] = {}, task: Any = None) -> Any:  # noqa: B006
        with _told(declared, ctx) as result:
            return _kept(result, declared.func(*_arguments(declared, ctx, result, args), **kwargs))

    return call


def _async_handler(declared: Task[..., Any]) -> Any:
    async def call(ctx: Any, args: list[Any] = [], kwargs: dict[str, Any] = {}, task: Any = None) -> Any:  # noqa: B006
        told = _told(declared, ctx)
        result = await sync_to_async(_entered)(told)
        try:
            value = _kept(result, await declared.func(*_arguments(declared, ctx, result, args), **kwargs))
        except BaseException as error:
            # Shielded: a second cancellation must not keep the signal from being sent.
            await asyncio.shield(sync_to_async(told.__exit__)(type(error), error, error.__traceback__))
            raise
        await sync_to_async(told.__exit__)(None, None, None)
        return value

    return call


def _entered(told: Any) -> TaskResult[Any]:
    """In the thread that async code borrows for the database; nobody else looks after its connections."""
    for each in connections.all(initialized_only=True):
        if not each.in_atomic_block:
            each.close_if_unusable_or_obsolete()
    result: TaskResult[Any] = told.__enter__()
    return result


def _arguments(task: Task[..., Any], ctx: Any, result: TaskResult[Any], args: list[Any]) -> list[Any]:
    return [JobsContext(task_result=result, job=ctx), *args] if task.takes_context else args


def _kept(result: TaskResult[Any], value: Any) -> Any:
    """What it returned, as the standard keeps it: JSON, or the task has failed."""
    clean = normalize_json(value)
    object.__setattr__(result, "_return_value", clean)
    return clean


@contextmanager
def _told(task: Task[..., Any], ctx: Any) -> Iterator[TaskResult[Any]]:
    """Tell that the task starts and, if this is its end, how it ended; within the except block, where loggers look.

    What a handler cannot know to be its end is told by `send_task_finished`, when it is recorded.
    """
    from jobs.contrib.tasks import results  # loads the models

    chain = [] if ctx.job_id is None else results.chain_of(ctx.job_id)
    result = results.of(chain) if chain else results.direct(task, ctx.params)
    sender = type(task.get_backend())
    task_started.send_robust(sender, task_result=result)
    try:
        yield result
    except Skip:
        if not _is_taken_away(ctx):
            results.conclude(result, TaskResultStatus.SUCCESSFUL)
            task_finished.send_robust(sender, task_result=result)
        raise
    except BaseException as error:
        if ctx.cancelled and ctx.stop_mode != StopMode.CANCEL:  # paused, handed back, out of time or out of its lease
            raise
        ctx.artifact(EXCEPTION, f"{type(error).__module__}.{type(error).__qualname__}")
        if not chain or _is_the_end(chain[-1], ctx, error):
            results.conclude(result, TaskResultStatus.FAILED, error)
            task_finished.send_robust(sender, task_result=result)
        raise
    if not _is_taken_away(ctx) and not ctx.over_token_limit:
        results.conclude(result, TaskResultStatus.SUCCESSFUL)
        task_finished.send_robust(sender, task_result=result)


def _is_the_end(row: Any, ctx: Any, error: BaseException) -> bool:
    """A task that is retried is not finished."""
    from jobs.engine.executors.run import decide_retry

    if ctx.stop_mode == StopMode.CANCEL or ctx.over_token_limit:
        return True
    known = {"attempt": row.attempt, "max_retries": row.max_retries, "retry_policy": row.retry_policy}
    return decide_retry(row.job_type, **known, cause=Cause.ERROR, error=error) is None


def _is_taken_away(ctx: Any) -> bool:
    """Whether somebody else has recorded the end, or runs it anew: what this handler says no longer counts."""
    from jobs.engine.transitions import jobs

    if not ctx.cancelled or ctx.job_id is None:
        return False
    return not jobs().filter(pk=ctx.job_id, status=Status.RUNNING, fence=ctx.fence).exists()


def send_task_finished(*, job_id: UUID, job_type: str, status: str, retried_by: UUID | None, **_facts: Any) -> None:
    """Send `task_finished`, unless the handler's own thread has sent it or a retry follows.

    For the ends that no handler reports: cancelled or skipped before the start, out of time, left behind by a worker
    that vanished. Called after their commit, by the process that recorded them.
    """
    if status not in REPORTED or retried_by is not None or job_type not in job_types():
        return
    from jobs.contrib.tasks import results

    chain = results.chain_of(job_id)
    if chain and not results.was_told(chain[-1]):
        result = results.of(chain)
        task_finished.send_robust(type(result.task.get_backend()), task_result=result)
