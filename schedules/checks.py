"""System checks, tag "jobs": declared schedules, and a django-q2 that would run our ticks twice; and for the doctor."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.db.models.functions import Now
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.checks import TAG
from jobs.management.doctor import Finding, Findings, Level
from schedules import declared
from schedules.firing import BROKEN
from schedules.models import Schedule

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


LATE_SEC = 60


def examine() -> Findings:
    rows = Schedule.objects.all()
    late = rows.filter(enabled=True, next_fire_at__lt=Now() - timedelta(seconds=LATE_SEC)).count()
    broken = rows.filter(enabled=False, disabled_reason__startswith=BROKEN).count()
    if late:
        message = ngettext("%d is overdue by more than a minute", "%d are overdue by more than a minute", late) % late
        yield Finding(
            "schedules", Level.ERROR, message, _("Start a worker with housekeeping, or run `manage.py tick`.")
        )
    if broken:
        message = ngettext("%d is broken and was disabled", "%d are broken and were disabled", broken) % broken
        yield Finding("schedules", Level.WARNING, message, _("See `manage.py schedules list`."))
    if not late and not broken:
        yield Finding("schedules", Level.OK, _("none is overdue"))
