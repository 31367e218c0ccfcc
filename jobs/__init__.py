"""Job Scheduler: run jobs later, in order, exactly once, and visibly."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobs.errors import JobEndedCancelled, JobFailed, JobSkipped, NoRetry, Retry, Skip, Snooze
from jobs.registry import job
from jobs.version import __version__

if TYPE_CHECKING:
    from jobs.services.groups import group
    from jobs.services.jobs import enqueue, enqueue_many
    from jobs.services.results import aresult, await_result, result, wait

__all__ = [
    "JobEndedCancelled",
    "JobFailed",
    "JobSkipped",
    "NoRetry",
    "Retry",
    "Skip",
    "Snooze",
    "__version__",
    "aresult",
    "await_result",
    "enqueue",
    "enqueue_many",
    "group",
    "job",
    "result",
    "wait",
]
_SERVICES = {
    **dict.fromkeys(("enqueue", "enqueue_many"), "jobs.services.jobs"),
    "group": "jobs.services.groups",
    **dict.fromkeys(("aresult", "await_result", "result", "wait"), "jobs.services.results"),
}


def __getattr__(name: str) -> Any:
    """Import the services on first use: they load the models, which need Django's apps to be ready."""
    if name in _SERVICES:
        return getattr(import_module(_SERVICES[name]), name)
    if name == "direct":
        return import_module("jobs.direct")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
