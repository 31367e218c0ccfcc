"""System checks, tag "jobs": schedules declared in code, and settings of django-q2 that would run ticks twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register

from jobs.checks import TAG
from schedules import declared

DJANGO_Q_RETRY_SEC = 60  # django-q2's own default


@register(TAG)
def check_declared(**kwargs: Any) -> list[CheckMessage]:
    """Report declarations in code that are invalid."""
    problems = ((handler, declared.find_problem(handler)) for handler in declared.declaring_handlers())
    return [
        Error(f"The schedule declared by {handler!r} is invalid: {problem}", id="jobs.E009")
        for handler, problem in problems
        if problem
    ]


@register(TAG)
def check_django_q(**kwargs: Any) -> list[CheckMessage]:
    """Report a `retry` that is not above `timeout`: the broker starts a task again after it, even a running one."""
    cluster = getattr(settings, "Q_CLUSTER", {})
    if not apps.is_installed("django_q") or not isinstance(cluster, Mapping):
        return []
    retry, timeout = cluster.get("retry", DJANGO_Q_RETRY_SEC), cluster.get("timeout")
    if isinstance(timeout, int | float) and isinstance(retry, int | float) and retry > timeout:
        return []
    message = (
        f"Q_CLUSTER: retry ({retry}) must be more than timeout ({timeout}): a task that is running would start again."
    )
    return [checks.Warning(message, hint="Set timeout, and a retry that is larger.", id="jobs.W004")]
