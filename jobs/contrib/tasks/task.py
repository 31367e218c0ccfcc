"""`JobsTask`, a task with the fields of a job (target, retries, deadline, …), and the context of its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobs.contrib.tasks.compat import Task, TaskContext, task_backends

if TYPE_CHECKING:
    from jobs.services.execution import Context

STANDARD_OPTIONS = ("priority", "backend", "queue_name", "takes_context")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsTask(Task):
    """A task with fields of its job.

    A field that is None is taken from the backend's OPTIONS, then from the settings. `resource` takes precedence over
    `queue_name`, unless a later `using` names the queue alone.
    """

    tenant: str | None = None
    target: str | None = None
    resource: str | None = None
    max_retries: int | None = None
    max_runtime_sec: float | None = None
    token_limit: int | None = None
    cost_units: int | None = None
    tags: tuple[str, ...] | list[str] | None = None
    deadline_at: datetime | None = None
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tags, list):
            object.__setattr__(self, "tags", tuple(self.tags))  # a list has no hash
        Task.__post_init__(self)

    def using(self, **changes: Any) -> JobsTask:
        """Return a copy with these changes, as Django's `using` does, for the fields of the job too."""
        unknown = changes.keys() - set(CALL_FIELDS)
        if unknown:
            raise TypeError(f"using() has no option {', '.join(map(repr, sorted(unknown)))}")
        changes = {name: value for name, value in changes.items() if value is not None}
        if "queue_name" in changes:
            changes.setdefault("resource", None)
        return replace(self, **changes)


_TASK_FIELDS = {standard.name for standard in fields(Task)}
JOB_FIELDS = tuple(own.name for own in fields(JobsTask) if own.name not in _TASK_FIELDS)
CALL_FIELDS = (*STANDARD_OPTIONS[:3], "run_after", *JOB_FIELDS)  # what `using` accepts


def dump_call_fields(task: Task[..., Any]) -> dict[str, Any]:
    """Return the options of the task's call as JSON, so that its result can return an equal task."""
    given = {name: value for name in CALL_FIELDS if (value := getattr(task, name, None)) is not None}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in given.items()}


def load_call_fields(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `dump_call_fields` was given; None for those that the task did not have."""
    call_fields: dict[str, Any] = {name: stored.get(name) for name in CALL_FIELDS}
    for name in ("run_after", "deadline_at"):
        if isinstance(call_fields[name], str):
            with suppress(ValueError):  # of a job that was submitted by its type, with any text there
                call_fields[name] = datetime.fromisoformat(call_fields[name])
    if isinstance(call_fields["tags"], list):
        call_fields["tags"] = tuple(call_fields["tags"])
    return call_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsContext(TaskContext):
    """The context of a function with `takes_context`. `job` is the handler's context: stop checks, progress, log."""

    job: Context = field(repr=False)


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a task, with the options of `JobsTask`; on Django 6.0 the decorator of Django accepts none."""
    if "run_after" in options:
        raise TypeError("run_after belongs to one call: task.using(run_after=…)")

    def decorate(func: Callable[..., Any]) -> Any:
        task_fields = {"priority": 0, "queue_name": "default", "backend": "default", "takes_context": False, **options}
        return task_backends[str(task_fields["backend"])].task_class(func=func, run_after=None, **task_fields)

    return decorate if function is None else decorate(function)
