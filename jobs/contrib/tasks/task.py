"""A task that may say what only a job can: its lane, its retries, its time. And what its function gets as context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobs.contrib.tasks.compat import Task, TaskContext, task_backends

if TYPE_CHECKING:
    from jobs.engine.executors.run import Context

STANDARD = ("priority", "backend", "queue_name", "takes_context")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsTask(Task):
    """None leaves it to the backend's OPTIONS, then to the settings. `resource` wins over `queue_name`."""

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
        """As the standard's, for every field of ours, too."""
        unknown = changes.keys() - {*STANDARD[:3], "run_after", *EXTRAS}
        if unknown:
            raise TypeError(f"using() has no option {', '.join(map(repr, sorted(unknown)))}")
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


EXTRAS = tuple(each.name for each in fields(JobsTask) if each.name not in {f.name for f in fields(Task)})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsContext(TaskContext):
    """What a function with `takes_context` gets. `job` is the handler's own context: stop checks, progress, log."""

    job: Context = field(repr=False)


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """The standard's `@task` with the options of `JobsTask`; on Django 6.0 its own decorator takes none."""
    if "run_after" in options:
        raise TypeError("run_after belongs to one call: task.using(run_after=…)")

    def decorate(func: Callable[..., Any]) -> Any:
        said = {"priority": 0, "queue_name": "default", "backend": "default", "takes_context": False, **options}
        return task_backends[str(said["backend"])].task_class(func=func, run_after=None, **said)

    return decorate if function is None else decorate(function)
