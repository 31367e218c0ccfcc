"""Task results, read from a retry chain. The id of a result is that of the chain's first job."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone

from jobs.contrib.tasks import handlers
from jobs.contrib.tasks.compat import Task, TaskError, TaskResult, TaskResultStatus
from jobs.contrib.tasks.task import load_call_fields
from jobs.models import Job, JobEvent
from jobs.states import SUCCESSFUL, TERMINAL, Cause, EventKind, Status

EXCEPTION_PATHS = {
    Cause.LEASE_EXPIRED: "jobs.errors.LeaseLost",
    Cause.CRASH_RECOVERY: "jobs.errors.LeaseLost",
    Cause.TIMEOUT: "builtins.TimeoutError",
    Cause.TOKEN_LIMIT: "jobs.errors.TokenLimitExceeded",
}
CANCELLED_PATH = "jobs.errors.JobCancelled"


def load_chain(job_id: UUID) -> list[Job]:
    """Return all jobs of the retry chain in order; an empty list if there is no such job."""
    rows = Job.objects.select_related("run")
    job = rows.filter(pk=job_id).first()
    if job is None:
        return []
    chain = [job]
    while chain[0].retry_of_id is not None:
        chain.insert(0, rows.get(pk=chain[0].retry_of_id))
    while (newer := rows.filter(retry_of_id=chain[-1].pk).first()) is not None:
        chain.append(newer)
    return chain


def build_result(chain: list[Job]) -> TaskResult[Any]:
    """Build the result of a retry chain. Raise LookupError if its jobs do not run a task."""
    first, last, params = chain[0], chain[-1], chain[0].params
    task = _restore_task(first)
    runs = [run for job in chain if (run := getattr(job, "run", None)) is not None]
    result: TaskResult[Any] = TaskResult(
        task=task,
        id=str(first.pk),
        status=_map_status(last),
        enqueued_at=first.created_at,
        started_at=runs[0].started_at if runs else None,
        finished_at=_get_finished_at(last),
        last_attempted_at=runs[-1].started_at if runs else None,
        args=params.get("args", []),
        kwargs=params.get("kwargs", {}),
        backend=task.backend,
        errors=[_build_error(job) for job in chain if job.status in (Status.FAILED, Status.CANCELLED)],
        worker_ids=[run.worker for run in runs],
    )
    if last.status == Status.COMPLETED:
        object.__setattr__(result, "_return_value", runs[-1].artifacts.get("result"))
    return result


def build_new_result(job: Job) -> TaskResult[Any]:
    """Build the result of a job that was just submitted; one with an idempotency key may have started before."""
    if job.dispatched_at is not None or job.status in TERMINAL:
        return build_result(load_chain(job.pk))
    Job.run.related.set_cached_value(job, None)  # it has no run: this saves a query
    return build_result([job])


def build_direct_result(task: Task[..., Any], params: dict[str, Any]) -> TaskResult[Any]:
    """Build the result of a call without a job: it cannot be looked up, but the function gets it in its context."""
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


def set_final_state(result: TaskResult[Any], status: TaskResultStatus, error: BaseException | None = None) -> None:
    """Change the result to what it will be once the job's outcome is recorded."""
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    if error is not None:
        from jobs.services.execution import format_traceback

        path = f"{type(error).__module__}.{type(error).__qualname__}"
        result.errors.append(TaskError(exception_class_path=path, traceback=format_traceback(error)))


def was_sent_by_handler(last: Job) -> bool:
    """Return whether the handler has already sent `task_finished`."""
    run = getattr(last, "run", None)
    return run is not None and (last.status in SUCCESSFUL or handlers.EXCEPTION_ARTIFACT in run.artifacts)


def _restore_task(first: Job) -> Task[..., Any]:
    """Return the task as it was enqueued, without validation: queues may have been renamed since.

    The options of a job that was submitted by its type, and not by a task, are those of its row.
    """
    if first.job_type != handlers.GENERIC_JOB_TYPE:
        declared = handlers.get_task(first.job_type)
    else:
        declared = handlers.load_task(first.params["path"], first.params["signature"])
    stored = first.params.get("task")
    changes: dict[str, Any] = {"priority": 2 * (first.base_priority - 50), "queue_name": first.resource}
    if isinstance(stored, dict):
        changes = load_call_fields({**changes, "backend": declared.backend, **stored})
    else:
        changes["run_after"] = first.not_before
    task = object.__new__(type(declared))
    for field in fields(declared):
        object.__setattr__(task, field.name, changes.get(field.name, getattr(declared, field.name)))
    return task


def _map_status(last: Job) -> TaskResultStatus:
    if last.status == Status.RUNNING:
        return TaskResultStatus.RUNNING
    if last.status not in TERMINAL:
        return TaskResultStatus.READY
    return TaskResultStatus.SUCCESSFUL if last.status in SUCCESSFUL else TaskResultStatus.FAILED


def _get_finished_at(last: Job) -> datetime | None:
    if last.status not in TERMINAL:
        return None
    run = getattr(last, "run", None)
    return run.finished_at if run is not None else _get_final_event(last).at


def _build_error(job: Job) -> TaskError:
    run = getattr(job, "run", None)
    if job.status == Status.CANCELLED:
        return TaskError(exception_class_path=CANCELLED_PATH, traceback=job.status_reason)
    path = run.artifacts.get(handlers.EXCEPTION_ARTIFACT) if run is not None else None
    if path is None:
        path = EXCEPTION_PATHS.get((_get_final_event(job).data or {}).get("cause", ""), "builtins.Exception")
    return TaskError(exception_class_path=path, traceback=run.error if run is not None else job.status_reason)


def _get_final_event(job: Job) -> JobEvent:
    kinds = [str(EventKind(status)) for status in TERMINAL]
    return JobEvent.objects.using(job._state.db).filter(job_id=job.pk, kind__in=kinds).latest("id")
