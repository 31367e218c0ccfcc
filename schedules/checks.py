"""System checks, tag "jobs", and the findings of `manage.py doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.checks import TAG
from jobs.errors import JobSchedulerError
from schedules import declared
from schedules.firing import BROKEN_PREFIX
from schedules.models import Schedule

DJANGO_Q_RETRY_SEC = 60  # django-q2's own default


@register(TAG)
def check_declared(**kwargs: Any) -> list[CheckMessage]:
    """Report declarations in code that are invalid."""
    errors: list[CheckMessage] = []
    for declaration in declared.list_declarations():
        try:
            declaration.validate()
        except JobSchedulerError as error:
            errors.append(
                Error(f"The schedule declared by {declaration.handler!r} is invalid: {error}", id="jobs.E009")
            )
    return errors


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


def examine() -> Iterator[Any]:
    """Report schedules that are overdue, and those that the scheduler disabled."""
    from jobs.management.doctor import Finding, Level  # only the command needs what this imports

    rows = Schedule.objects.all()
    late = rows.overdue().count()
    broken = rows.filter(enabled=False, disabled_reason__startswith=BROKEN_PREFIX).count()
    if late:
        message = ngettext("%d is overdue by more than a minute", "%d are overdue by more than a minute", late) % late
        hint = _("Start a worker with housekeeping, or run `manage.py tick`.")
        yield Finding("schedules", Level.ERROR, message, hint)
    if broken:
        message = ngettext("%d is broken and was disabled", "%d are broken and were disabled", broken) % broken
        yield Finding("schedules", Level.WARNING, message, _("See `manage.py schedules list`."))
    if not late and not broken:
        yield Finding("schedules", Level.OK, _("none is overdue"))
