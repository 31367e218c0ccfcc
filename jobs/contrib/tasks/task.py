"""`JobsTask`, a task with the fields of a job (target, retries, deadline, …), and the context of its function."""

from __future__ import annotations

from collections.abc import Callable
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
    `queue_name`.
    """

    tenant: str | None = None
    target: str | None = None
    resource: str | None = None
    max_retries: int | None = None
    max_runtime_sec: float | None = None
    token_limit: int | None = None
    cost_units: int | None = None
    tags: tuple[str, ...] | None = None
    deadline_at: datetime | None = None
    idempotency_key: str | None = None

    def using(self, **changes: Any) -> JobsTask:
        """Return a copy with these changes, as Django's `using` does, for the fields of the job too."""
        unknown = changes.keys() - {*STANDARD_OPTIONS[:3], "run_after", *JOB_FIELDS}
        if unknown:
            raise TypeError(f"using() has no option {', '.join(map(repr, sorted(unknown)))}")
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


_TASK_FIELDS = {standard.name for standard in fields(Task)}
JOB_FIELDS = tuple(own.name for own in fields(JobsTask) if own.name not in _TASK_FIELDS)


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
