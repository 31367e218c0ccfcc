"""For the test suites of sites: run what was enqueued, look at it, and let time pass.

from jobs.testing import assert_enqueued, drain, inline, time_travel

Jobs run in the test's thread and, if it has one, in its transaction: the engine's own claim, handler and end. No clock
is touched: what waits is moved nearer, what falls due is fired.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload
from uuid import uuid4

from asgiref.sync import async_to_sync
from django.apps import apps
from django.db import connections, transaction
from django.db.models import F

from jobs import actors, clock
from jobs.engine import finish, promoter
from jobs.engine.claim import Claim, Claimer, Serves
from jobs.engine.executors.run import CaptureLogs, Context, run, run_async
from jobs.engine.executors.thread import retry_facts
from jobs.engine.selection import limits
from jobs.engine.worker.running_jobs import RunningJob, make_context
from jobs.models import Job
from jobs.outcomes import Completed, Failed, Outcome, Skipped
from jobs.registry import Handler, registry
from jobs.services import jobs as job_services
from jobs.states import LIVE
from jobs.validation import fields as validation

if TYPE_CHECKING:
    from jobs.contrib.tasks.compat import Task

    JobType: TypeAlias = str | Handler[..., Any] | Task[..., Any]

NAME = "testing"
LEASE_SEC = 3600.0
ACTOR = actors.worker(NAME)
TIMES = ("not_before", "recheck_at", "deadline_at")
TASK_CALL: dict[str, Any] = {"args": [], "kwargs": {}}


class JobFailed(AssertionError):
    """A job failed that was expected to end well. Its message is the handler's traceback."""

    def __init__(self, job: Job, error: str) -> None:
        super().__init__(f"{job.job_type} {job.pk} failed:\n{error}")
        self.job = job


def drain(*, raise_failures: bool = False, most: int = 10_000) -> list[Job]:
    """Run all that is ready, in dispatch order, and what becomes ready by that. The jobs that ran, as they ended.

    What waits for its time goes on waiting: see `time_travel`.
    """
    limits.sync()
    claimer = Claimer(NAME, Serves(tuple(registry.local_names())), life=f"{NAME}@{uuid4()}")
    ran: list[Job] = []
    with _capture_logs():
        while len(ran) < most and (claim := _claim_next(claimer)) is not None:
            ran.append(_run(claim, raise_failures))
    return ran


@contextmanager
def inline(*, raise_failures: bool = False) -> Iterator[list[Job]]:
    """Within the block a job that is enqueued runs before `enqueue` returns. The list has the jobs that ran."""
    ran: list[Job] = []
    busy: list[bool] = []

    def run_now() -> None:
        if not busy:  # a handler that enqueues: the loop that runs it takes that, too
            busy.append(True)
            try:
                ran.extend(drain(raise_failures=raise_failures))
            finally:
                busy.clear()

    before = job_services.submit_spec, job_services._submit_specs
    job_services.submit_spec, job_services._submit_specs = _then(before[0], run_now), _then(before[1], run_now)
    try:
        yield ran
        run_now()  # what came in by other doors: groups, retries, schedules
    finally:
        job_services.submit_spec, job_services._submit_specs = before


def context(**given: Any) -> Context:
    """A `ctx` to call a handler with, directly: `generate(context(), topic="sea")`."""
    return Context(**{"job_id": uuid4(), "params": {}, **given})


def _then(submit: Callable[..., Any], follow: Callable[[], None]) -> Any:
    def submitted(*args: Any, **kwargs: Any) -> Any:
        result = submit(*args, **kwargs)
        follow()
        if isinstance(result, job_services.SubmitResult):
            result.job.refresh_from_db()
        return result

    return submitted


def _claim_next(claimer: Claimer) -> Claim | None:
    while promoter.wake_due():
        pass
    while promoter.promote():
        pass
    claims = claimer.claim([0], lease_sec=LEASE_SEC)
    return claims[0] if claims else None


def _run(claim: Claim, raise_failures: bool) -> Job:
    running = RunningJob(claim, make_context(claim), deadline=float("inf"))
    # In a test's transactions a handler that fails must not break the rest of it: its writes are taken back.
    using = [each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block]
    with ExitStack() as savepoints:
        for alias in using:
            savepoints.enter_context(transaction.atomic(using=alias))
        call: Callable[..., Outcome] = async_to_sync(run_async) if registry.get(claim.job_type).is_async else run
        outcome = call(claim.job_type, running.ctx, retry_facts(running))
        if isinstance(outcome, Failed):
            for alias in using:
                transaction.set_rollback(True, using=alias)
    running.write_progress()
    if isinstance(outcome, Completed | Skipped | Failed):
        finish.finish([finish.End(claim.id, claim.lease_token, outcome, claim.group_id)], actor=ACTOR)
    else:
        finish.hand_back(claim.id, claim.lease_token, actor=ACTOR, reason="stopped in a test")
    job = Job.objects.get(pk=claim.id)
    if raise_failures and isinstance(outcome, Failed):
        raise JobFailed(job, outcome.error)
    return job


@contextmanager
def _capture_logs() -> Iterator[None]:
    capture, loggers = CaptureLogs(), (logging.getLogger(), logging.getLogger("jobs.run"))
    for each in loggers:
        each.addHandler(capture)
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(capture)


def enqueued(job_type: JobType | None = None, params: dict[str, Any] | None = None, **fields: Any) -> list[Job]:
    """List the jobs of this type, with these very params and these fields, in the order of their submission.

    Retries are not enqueued by anybody, and are left out. A job of a task goes by the task's path and by what that was
    called with.
    """
    known = {name for field in Job._meta.concrete_fields for name in (field.name, field.attname)}
    if unknown := sorted(fields.keys() - known):
        raise TypeError(f"a job has no field {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}")
    name = None if job_type is None else name_of(job_type)
    if "priority" in fields:
        fields["priority"] = validation.parse_priority(fields["priority"], "priority")
    found = Job.objects.filter(retry_of__isnull=True).order_by("id")
    return [job for job in found if _fits(job, name, params, fields)]


@overload
def assert_enqueued(
    job_type: JobType | None = None, params: dict[str, Any] | None = None, *, count: Literal[0], **fields: Any
) -> None: ...


@overload
def assert_enqueued(
    job_type: JobType | None = None,
    params: dict[str, Any] | None = None,
    *,
    count: int | None = None,
    **fields: Any,
) -> Job: ...


def assert_enqueued(
    job_type: JobType | None = None,
    params: dict[str, Any] | None = None,
    *,
    count: int | None = None,
    **fields: Any,
) -> Job | None:
    """Some such job was enqueued; exactly `count` of them, if that is said. Returns the last one; of none, None."""
    found = enqueued(job_type, params, **fields)
    assert found if count is None else len(found) == count, _describe_missing(
        job_type, params, fields, len(found), count
    )
    return found[-1] if found else None


def assert_not_enqueued(job_type: JobType | None = None, params: dict[str, Any] | None = None, **fields: Any) -> None:
    found = enqueued(job_type, params, **fields)
    assert not found, _describe_missing(job_type, params, fields, len(found), 0)


def _fits(job: Job, name: str | None, params: dict[str, Any] | None, fields: dict[str, Any]) -> bool:
    if name not in (None, job.job_type, path_of(job)):
        return False
    if params is not None and not has_params(job, params):
        return False
    return all(getattr(job, field) == value for field, value in fields.items())


def _describe_missing(job_type: Any, params: Any, fields: dict[str, Any], found: int, count: int | None) -> str:
    name = "any job" if job_type is None else name_of(job_type)
    named = [f"{key}={value!r}" for key, value in fields.items()]
    given = ", ".join(named if params is None else [repr(params), *named])
    wanted = "at least 1" if count is None else str(count)
    there = [f"  {path_of(job)} {params_of(job)!r} target={job.target!r} {job.status}" for job in enqueued()[:50]]
    return "\n".join([f"{name} ({given}): {found} enqueued, expected {wanted}. There are:", *(there or ["  none"])])


def name_of(job_type: Any) -> str:
    match job_type:
        case str():
            return job_type
        case Handler():
            return job_type.name
    path: str | None = getattr(job_type, "module_path", None)  # two packages have a class for tasks, or neither
    if path is None:
        raise TypeError(f"a job type is a name, a handler or a task, not {job_type!r}")
    return path


def path_of(job: Job) -> str:
    """Its job type, or the path of a task that has none of its own."""
    handlers = _task_handlers()
    if handlers is None or job.job_type != handlers.GENERIC_JOB_TYPE:
        return job.job_type
    return str(job.params.get("path", job.job_type))


def params_of(job: Job) -> dict[str, Any]:
    """As they are shown: of a task without what its backend notes for itself."""
    return _task_call(job.params) if _is_a_tasks(job) else job.params


def has_params(job: Job, params: dict[str, Any]) -> bool:
    if job.params == params:
        return True
    return _is_a_tasks(job) and params.keys() <= TASK_CALL.keys() and _task_call(job.params) == _task_call(params)


def _task_call(params: dict[str, Any]) -> dict[str, Any]:
    from jobs.contrib.tasks.compat import normalize_json

    return {name: normalize_json(params.get(name, usual)) for name, usual in TASK_CALL.items()}


def _is_a_tasks(job: Job) -> bool:
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
    """None on a site whose tasks have no backend of ours: it may not even have what an import of them needs."""
    return sys.modules.get("jobs.contrib.tasks.handlers")


class TimeMachine:
    """Its `now` is the database's time and all that has been passed."""

    def __init__(self) -> None:
        self.passed = timedelta()

    @property
    def now(self) -> datetime:
        return clock.now() + self.passed

    def advance(self, by: timedelta | None = None, **units: float) -> None:
        """`advance(hours=2)`: jobs that wait for a time in it become ready, due times of schedules in it are fired."""
        step = timedelta(**units) if by is None else by
        if step < timedelta():
            raise ValueError("time does not go back")
        begin = self.now
        self.passed += step
        rows = Job.objects.filter(status__in=sorted(LIVE))
        for name in TIMES:
            rows.filter(**{f"{name}__isnull": False}).update(**{name: F(name) - step})
        for config in apps.get_app_configs():
            pass_time: Any = getattr(config, "pass_time", None)  # apps of ours that have times of their own
            if pass_time is not None:
                pass_time(begin, begin + step)
        while promoter.wake_due():
            pass

    def to(self, moment: datetime) -> None:
        self.advance(moment - self.now)


@contextmanager
def time_travel() -> Iterator[TimeMachine]:
    """`with time_travel() as clock: clock.advance(hours=1); drain()`."""
    yield TimeMachine()
