"""What was enqueued, for a test to look at. Retries are not enqueued by anybody, and are left out.

A job of a task goes by the task's path and by what that was called with.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from jobs import parsing
from jobs.models import Job
from jobs.registry import Handler

if TYPE_CHECKING:
    from jobs.contrib.tasks.compat import Task

    JobType: TypeAlias = str | Handler[..., Any] | Task[..., Any]

CALL: dict[str, Any] = {"args": [], "kwargs": {}}


def enqueued(job_type: JobType | None = None, params: dict[str, Any] | None = None, **fields: Any) -> list[Job]:
    """The jobs of this type, with these very params, and with these fields, in the order of their submission."""
    _require_known(fields)
    name = None if job_type is None else name_of(job_type)
    if "priority" in fields:
        fields["priority"] = parsing.priority(fields["priority"], "priority")
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
    assert found if count is None else len(found) == count, _told(job_type, params, fields, len(found), count)
    return found[-1] if found else None


def assert_not_enqueued(job_type: JobType | None = None, params: dict[str, Any] | None = None, **fields: Any) -> None:
    found = enqueued(job_type, params, **fields)
    assert not found, _told(job_type, params, fields, len(found), 0)


def _require_known(fields: dict[str, Any]) -> None:
    known = {name for field in Job._meta.concrete_fields for name in (field.name, field.attname)}
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise TypeError(f"a job has no field {', '.join(map(repr, unknown))}; it has {', '.join(sorted(known))}")


def _fits(job: Job, name: str | None, params: dict[str, Any] | None, fields: dict[str, Any]) -> bool:
    if name not in (None, job.job_type, path_of(job)):
        return False
    if params is not None and not has_params(job, params):
        return False
    return all(getattr(job, field) == said for field, said in fields.items())


def _told(job_type: Any, params: Any, fields: dict[str, Any], found: int, count: int | None) -> str:
    name = "any job" if job_type is None else name_of(job_type)
    named = [f"{key}={value!r}" for key, value in fields.items()]
    said = ", ".join(named if params is None else [repr(params), *named])
    wanted = "at least 1" if count is None else str(count)
    there = [f"  {path_of(job)} {params_of(job)!r} target={job.target!r} {job.status}" for job in enqueued()[:50]]
    return "\n".join([f"{name} ({said}): {found} enqueued, expected {wanted}. There are:", *(there or ["  none"])])


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
    if handlers is None or job.job_type != handlers.ANYWHERE:
        return job.job_type
    return str(job.params.get("path", job.job_type))


def params_of(job: Job) -> dict[str, Any]:
    """As they are shown: of a task without what its backend notes for itself."""
    return _call(job.params) if _is_a_tasks(job) else job.params


def has_params(job: Job, said: dict[str, Any]) -> bool:
    if job.params == said:
        return True
    return _is_a_tasks(job) and said.keys() <= CALL.keys() and _call(job.params) == _call(said)


def _call(params: dict[str, Any]) -> dict[str, Any]:
    from jobs.contrib.tasks.compat import normalize_json

    return {name: normalize_json(params.get(name, usual)) for name, usual in CALL.items()}


def _is_a_tasks(job: Job) -> bool:
    handlers = _task_handlers()
    if handlers is None:
        return False
    if job.job_type == handlers.ANYWHERE:
        return True
    try:
        handlers.known(job.job_type)
    except LookupError:
        return False
    return True


def _task_handlers() -> Any:
    """None on a site whose tasks have no backend of ours: it may not even have what an import of them needs."""
    return sys.modules.get("jobs.contrib.tasks.handlers")
