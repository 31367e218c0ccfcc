"""System checks, tag "jobs": declared schedules, and a django-q2 that would run our ticks twice; and for the doctor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register

from jobs.checks import TAG
from schedules import declared

RETRY_SEC = 60  # django-q2's own default


@register(TAG)
def check_declared(**kwargs: Any) -> list[CheckMessage]:
    found = ((handler, declared.problem(handler)) for handler in declared.handlers())
    return [
        Error(f"The schedule of {handler!r} cannot be followed: {problem}", id="jobs.E009")
        for handler, problem in found
        if problem
    ]


@register(TAG)
def check_django_q(**kwargs: Any) -> list[CheckMessage]:
    """Its broker hands a task out again after `retry` seconds, whether or not it is still running."""
    cluster = getattr(settings, "Q_CLUSTER", {})
    if not apps.is_installed("django_q") or not isinstance(cluster, Mapping):
        return []
    retry, timeout = cluster.get("retry", RETRY_SEC), cluster.get("timeout")
    if isinstance(timeout, int | float) and isinstance(retry, int | float) and retry > timeout:
        return []
    message = (
        f"Q_CLUSTER: retry ({retry}) must be more than timeout ({timeout}): a task that is running would start again."
    )
    return [checks.Warning(message, hint="Set timeout, and a retry that is larger.", id="jobs.W004")]
