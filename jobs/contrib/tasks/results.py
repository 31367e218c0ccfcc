"""A chain of jobs, read as the one result that the standard knows. Its id is that of the chain's first job."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from jobs.contrib.tasks import handlers
from jobs.contrib.tasks.compat import Task, TaskError, TaskResult, TaskResultStatus
from jobs.contrib.tasks.task import EXTRAS
from jobs.engine.transitions import jobs
from jobs.models import Job, JobEvent
from jobs.states import ENDED_WELL, TERMINAL, Cause, EventKind, Status

PATHS = {
    Cause.LEASE_EXPIRED: "jobs.errors.LeaseLost",
    Cause.CRASH_RECOVERY: "jobs.errors.LeaseLost",
    Cause.TIMEOUT: "builtins.TimeoutError",
    Cause.TOKEN_LIMIT: "jobs.errors.TokenLimitExceeded",
}
CANCELLED = "jobs.errors.JobCancelled"


def chain_of(job_id: UUID) -> list[Job]:
    """All jobs of the chain, the first one first; empty, if there is no such job."""
    rows = jobs().select_related("run")
    found = rows.filter(pk=job_id).first()
    if found is None:
        return []
    chain = [found]
    while chain[0].retry_of_id is not None:
        chain.insert(0, rows.get(pk=chain[0].retry_of_id))
    while (newer := rows.filter(retry_of_id=chain[-1].pk).first()) is not None:
        chain.append(newer)
    return chain


def of(chain: list[Job]) -> TaskResult[Any]:
    """LookupError, if its jobs are no task's."""
    first, last, said = chain[0], chain[-1], chain[0].params
    task = _task(first)
    runs = [run for each in chain if (run := getattr(each, "run", None)) is not None]
    result: TaskResult[Any] = TaskResult(
        task=task,
        id=str(first.pk),
        status=_status(last),
        enqueued_at=first.created_at,
        started_at=runs[0].started_at if runs else None,
        finished_at=_finished_at(last),
        last_attempted_at=runs[-1].started_at if runs else None,
        args=said.get("args", []),
        kwargs=said.get("kwargs", {}),
        backend=task.backend,
        errors=[_error(each) for each in chain if each.status in (Status.FAILED, Status.CANCELLED)],
        worker_ids=[run.worker for run in runs],
    )
    if last.status == Status.COMPLETED:
        object.__setattr__(result, "_return_value", runs[-1].artifacts.get("result"))
    return result


def of_new(job: Job) -> TaskResult[Any]:
    """Of a job that was just submitted; one with an idempotency key may have a history."""
    if job.dispatched_at is not None or job.status in TERMINAL:
        return of(chain_of(job.pk))
    Job.run.related.set_cached_value(job, None)  # it has none: spare asking
    return of([job])


def direct(task: Task[..., Any], params: dict[str, Any]) -> TaskResult[Any]:
    """Of a call without a job: nobody can look it up, but its function may ask for it."""
    now = timezone.now()
    return TaskResult(
        task=task,
        id="direct",
        status=TaskResultStatus.RUNNING,
        enqueued_at=now,
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=params.get("args", []),
        kwargs=params.get("kwargs", {}),
        backend=task.backend,
        errors=[],
        worker_ids=["direct"],
    )


def conclude(result: TaskResult[Any], status: TaskResultStatus, error: BaseException | None = None) -> None:
    """The result as it will be once the job's end is recorded."""
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    if error is not None:
        from jobs.engine.executors.run import trace

        path = f"{type(error).__module__}.{type(error).__qualname__}"
        result.errors.append(TaskError(exception_class_path=path, traceback=trace(error)))


def was_told(last: Job) -> bool:
    """Whether its handler has told this end by itself."""
    run = getattr(last, "run", None)
    return run is not None and (last.status in ENDED_WELL or handlers.EXCEPTION in run.artifacts)


def _task(first: Job) -> Task[..., Any]:
    """The task with what was said for this one call. Not validated anew: queues may have been renamed since."""
    if first.job_type != handlers.ANYWHERE:
        known = handlers.known(first.job_type)
    else:
        known = handlers.find(first.params["path"], first.params["signature"])
    said = first.params.get("task")
    said = said if isinstance(said, dict) else {}
    changes: dict[str, Any] = {
        "priority": said.get("priority", 2 * (first.base_priority - 50)),
        "queue_name": said.get("queue_name", first.resource),
        "backend": said.get("backend", known.backend),
        "run_after": first.not_before,
        **{name: getattr(first, name) for name in EXTRAS},
    }
    made = object.__new__(type(known))
    for each in fields(known):
        object.__setattr__(made, each.name, changes.get(each.name, getattr(known, each.name)))
    return made


def _status(last: Job) -> TaskResultStatus:
    if last.status == Status.RUNNING:
        return TaskResultStatus.RUNNING
    if last.status not in TERMINAL:
        return TaskResultStatus.READY
    return TaskResultStatus.SUCCESSFUL if last.status in ENDED_WELL else TaskResultStatus.FAILED


def _finished_at(last: Job) -> datetime | None:
    if last.status not in TERMINAL:
        return None
    run = getattr(last, "run", None)
    return run.finished_at if run is not None else _end(last).at


def _error(job: Job) -> TaskError:
    run = getattr(job, "run", None)
    if job.status == Status.CANCELLED:
        return TaskError(exception_class_path=CANCELLED, traceback=job.status_reason)
    path = run.artifacts.get(handlers.EXCEPTION) if run is not None else None
    if path is None:
        path = PATHS.get((_end(job).data or {}).get("cause", ""), "builtins.Exception")
    return TaskError(exception_class_path=path, traceback=run.error if run is not None else job.status_reason)


def _end(job: Job) -> JobEvent:
    kinds = [str(EventKind(status)) for status in TERMINAL]
    return JobEvent.objects.using(job._state.db).filter(job_id=job.pk, kind__in=kinds).latest("id")
