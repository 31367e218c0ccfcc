"""What a test calls a job and its params. A job of a task goes by the task's path and by what that was called with."""

from __future__ import annotations

import sys
from typing import Any

from jobs.models import Job
from jobs.registry import Handler

CALL: dict[str, Any] = {"args": [], "kwargs": {}}


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
