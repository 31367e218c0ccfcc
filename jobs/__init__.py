"""Job Scheduler: run jobs later, in order, exactly once, and visibly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobs.errors import NoRetry, Skip
from jobs.registry import job
from jobs.version import __version__

if TYPE_CHECKING:
    from jobs.services.groups import group
    from jobs.services.jobs import enqueue, enqueue_many

__all__ = ["NoRetry", "Skip", "__version__", "enqueue", "enqueue_many", "group", "job"]


def __getattr__(name: str) -> Any:
    """Import the services on first use: they load the models, which need Django's apps to be ready."""
    if name in ("enqueue", "enqueue_many"):
        from jobs.services import jobs as job_services

        return getattr(job_services, name)
    if name == "group":
        from jobs.services.groups import group

        return group
    if name == "direct":
        from importlib import import_module

        return import_module("jobs.direct")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
