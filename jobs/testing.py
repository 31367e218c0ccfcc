"""Helpers for the test suites of sites: run enqueued jobs, inspect them, and let time pass.

from jobs.testing import assert_enqueued, drain, inline, time_travel

Jobs run in the test's thread and, if it has one, in its transaction, with the engine's own claim and finish. Clocks are
not changed: `time_travel` moves the times of waiting jobs and fires due schedules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload
from uuid import uuid4

from django.apps import apps
from django.db.models import F

from jobs import clock
from jobs.models import ConcurrencyLimit, Job
from jobs.outcomes import Failed
from jobs.registry import Handler
from jobs.services import execution
from jobs.services import jobs as job_services
from jobs.services.execution import Context
from jobs.states import LIVE
from jobs.validation import fields as validation

if TYPE_CHECKING:
    from jobs.contrib.tasks.compat import Task

    JobType: TypeAlias = str | Handler[..., Any] | Task[..., Any]

NAME = "testing"
LEASE_SEC = 3600.0
TIMES = ("not_before", "recheck_at", "deadline_at")
TASK_CALL: dict[str, Any] = {"args": [], "kwargs": {}}


class JobFailed(AssertionError):
    """A job failed that was expected to complete. The message is the handler's traceback."""

    def __init__(self, job: Job, error: str) -> None:
        super().__init__(f"{job.job_type} {job.pk} failed:\n{error}")
        self.job = job


def drain(*, raise_failures: bool = False, limit: int = 10_000) -> list[Job]:
    """Run all ready jobs in dispatch order, and those that become ready by it. Return them as they are afterwards.

    Jobs that are scheduled for later do not run: see `time_travel`.
    """
    worker = execution.InlineWorker(NAME, lease_sec=LEASE_SEC)
    ran: list[Job] = []
    with execution.capture_logs():
        while len(ran) < limit and (result := worker.run_next()) is not None:
            ran.append(result.job)
            if raise_failures and isinstance(result.outcome, Failed):
                raise JobFailed(result.job, result.outcome.error)
    return ran


@contextmanager
def inline(*, raise_failures: bool = False) -> Iterator[list[Job]]:
    """Run each job before its `enqueue` returns, within the block. Yield the list of the jobs that ran."""
    ran: list[Job] = []
    is_running = False

    def run_now() -> None:
        nonlocal is_running
        if not is_running:  # a job that a handler enqueues is run by the same loop
            is_running = True
            try:
                ran.extend(drain(raise_failures=raise_failures))
            finally:
                is_running = False

    submit_one, submit_many = job_services.submit_spec, job_services._submit_specs
    job_services.submit_spec = _call_after(submit_one, run_now)
    job_services._submit_specs = _call_after(submit_many, run_now)
    try:
        yield ran
        run_now()  # jobs that were not inserted by these functions: groups, retries, schedules
    finally:
        job_services.submit_spec, job_services._submit_specs = submit_one, submit_many


def context(**fields: Any) -> Context:
    """Return a `ctx` with which a handler can be called directly: `generate(context(), topic="sea")`."""
    return Context(**{"job_id": uuid4(), "params": {}, **fields})


def _call_after(submit: Callable[..., Any], callback: Callable[[], None]) -> Any:
    """Wrap a function that submits, so that the callback is called after it."""

    def submit_and_call(*args: Any, **kwargs: Any) -> Any:
        result = submit(*args, **kwargs)
        callback()
        if isinstance(result, job_services.SubmitResult):
            result.job.refresh_from_db()
        return result

    return submit_and_call


def enqueued(job_type: JobType | None = None, params: dict[str, Any] | None = None, **fields: Any) -> list[Job]:
    """List the jobs of this type with exactly these params and these fields, in the order of their submission.

    Retries are left out. A job that runs a task is found by the task's path and by its arguments.
    """
    known = {name for field in Job._meta.concrete_fields for name in (field.name, field.attname)}
    if unknown := sorted(fields.keys() - known):
        raise TypeError(f"a job has no field {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}")
    name = None if job_type is None else name_of(job_type)
    if "priority" in fields:
        fields["priority"] = validation.parse_priority(fields["priority"], "priority")
    jobs = Job.objects.filter(retry_of__isnull=True).order_by("id")
    return [job for job in jobs if _matches(job, name, params, fields)]


@overload
def assert_enqueued(
    job_type: JobType | None = None, params: dict[str, Any] | None = None, *, count: Literal[0], **fields: Any
) -> None: ...


@overload
def assert_enqueued(
    job_type: JobType | None = None, params: dict[str, Any] | None = None, *, count: int | None = None, **fields: Any
) -> Job: ...


def assert_enqueued(
    job_type: JobType | None = None, params: dict[str, Any] | None = None, *, count: int | None = None, **fields: Any
) -> Job | None:
    """Assert that such a job was enqueued, or exactly `count` of them. Return the last one; None if there is none."""
    jobs = enqueued(job_type, params, **fields)
    is_expected = bool(jobs) if count is None else len(jobs) == count
    assert is_expected, _describe_mismatch(job_type, params, fields, len(jobs), count)
    return jobs[-1] if jobs else None


def assert_not_enqueued(job_type: JobType | None = None, params: dict[str, Any] | None = None, **fields: Any) -> None:
    """Assert that no such job was enqueued."""
    assert_enqueued(job_type, params, count=0, **fields)


def _matches(job: Job, name: str | None, params: dict[str, Any] | None, fields: dict[str, Any]) -> bool:
    if name not in (None, job.job_type, path_of(job)):
        return False
    if params is not None and not has_params(job, params):
        return False
    return all(getattr(job, field) == value for field, value in fields.items())


def _describe_mismatch(job_type: Any, params: Any, fields: dict[str, Any], actual: int, count: int | None) -> str:
    name = "any job" if job_type is None else name_of(job_type)
    conditions = [f"{key}={value!r}" for key, value in fields.items()]
    arguments = ", ".join(conditions if params is None else [repr(params), *conditions])
    expected = "at least 1" if count is None else str(count)
    lines = [f"  {path_of(job)} {params_of(job)!r} target={job.target!r} {job.status}" for job in enqueued()[:50]]
    heading = f"{name} ({arguments}): {actual} enqueued, expected {expected}. Enqueued jobs:"
    return "\n".join([heading, *(lines or ["  none"])])


def name_of(job_type: Any) -> str:
    """Return the name of a job type that is given as a name, a handler or a task."""
    match job_type:
        case str():
            return job_type
        case Handler():
            return job_type.name
    # Django and django-tasks each have a class for tasks; neither may be installed.
    path: str | None = getattr(job_type, "module_path", None)
    if path is None:
        raise TypeError(f"a job type is a name, a handler or a task, not {job_type!r}")
    return path


def path_of(job: Job) -> str:
    """Return the job type, or the path of a task that has no job type of its own."""
    handlers = _task_handlers()
    if handlers is None or job.job_type != handlers.GENERIC_JOB_TYPE:
        return job.job_type
    return str(job.params.get("path", job.job_type))


def params_of(job: Job) -> dict[str, Any]:
    """Return the params, of a task without the fields that its backend adds."""
    return _task_arguments(job.params) if _runs_task(job) else job.params


def has_params(job: Job, params: dict[str, Any]) -> bool:
    if job.params == params:
        return True
    is_call = _runs_task(job) and params.keys() <= TASK_CALL.keys()
    return is_call and _task_arguments(job.params) == _task_arguments(params)


def _task_arguments(params: dict[str, Any]) -> dict[str, Any]:
    from jobs.contrib.tasks.compat import normalize_json

    return {name: normalize_json(params.get(name, default)) for name, default in TASK_CALL.items()}


def _runs_task(job: Job) -> bool:
    handlers = _task_handlers()
    if handlers is None:
        return False
    if job.job_type == handlers.GENERIC_JOB_TYPE:
        return True
    try:
        handlers.get_task(job.job_type)
    except LookupError:
        return False
    return True


def _task_handlers() -> Any:
    """Return the module, or None on a site without our task backend, where its imports may be missing."""
    return sys.modules.get("jobs.contrib.tasks.handlers")


class TimeMachine:
    """A clock for tests: `now` is the database's time plus all that was advanced."""

    def __init__(self) -> None:
        self.passed = timedelta()

    @property
    def now(self) -> datetime:
        return clock.now() + self.passed

    def advance(self, by: timedelta | None = None, **units: float) -> None:
        """Let time pass: `advance(hours=2)`. Jobs due by then become ready, schedules due by then are fired,
        and rates let more jobs start.
        """
        step = timedelta(**units) if by is None else by
        if step < timedelta():
            raise ValueError(f"time cannot go back: {step}")
        start = self.now
        self.passed += step
        rows = Job.objects.filter(status__in=sorted(LIVE))
        for name in TIMES:
            rows.filter(**{f"{name}__isnull": False}).update(**{name: F(name) - step})
        ConcurrencyLimit.objects.filter(bucket_at__isnull=False).update(bucket_at=F("bucket_at") - step)
        for config in apps.get_app_configs():
            pass_time: Any = getattr(config, "pass_time", None)  # of our apps that have times of their own
            if pass_time is not None:
                pass_time(start, start + step)
        execution.promote_due_jobs()

    def to(self, moment: datetime) -> None:
        """Let time pass until this moment."""
        self.advance(moment - self.now)


@contextmanager
def time_travel() -> Iterator[TimeMachine]:
    """Return a clock: `with time_travel() as clock: clock.advance(hours=1); drain()`."""
    yield TimeMachine()
