"""Integrate django-q2: its cluster may run our maintenance, and its schedules can be read.

No other module imports django-q2. A cluster gets the name of `tick`, never arguments: a tick is bounded in time, does
only what is due, and may be delivered twice or interrupted at any point.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import router, transaction
from django.utils.translation import gettext as _

from jobs.errors import Conflict
from jobs.outages import OUTAGE_ERRORS
from jobs.services import maintenance

logger = logging.getLogger("jobs.contrib.django_q")
TICK = "jobs.contrib.django_q.tick"
TICK_NAME = "jobscheduler:tick"
TICK_SEC = 10.0  # the tasks that have not started by then are left to the next tick
TICK_OPTIONS = {"ack_failure": True, "save": False, "timeout": 20}


class DjangoQNotInstalled(Conflict):
    code = "django_q_not_installed"


@dataclass(frozen=True)
class DjangoQSchedule:
    """A row of django-q2's table of schedules."""

    id: int
    name: str | None
    func: str
    hook: str | None
    args: str | None
    kwargs: str | None
    schedule_type: str
    minutes: int | None
    repeats: int
    next_run: datetime | None
    cron: str | None
    cluster: str | None
    intended_date_kwarg: str | None


def tick() -> None:
    """Run the maintenance tasks once, for at most TICK_SEC; the rest is due again at the next tick."""
    end = time.monotonic() + TICK_SEC
    # Begin with another task each minute, so that a slow one does not always keep the same others from running.
    tasks = maintenance.list_tasks()
    start = int(time.time() // 60) % max(len(tasks), 1)
    for task in [*tasks[start:], *tasks[:start]]:
        if time.monotonic() > end:
            logger.warning("a tick exceeded %d s; the remaining tasks are left to the next tick", TICK_SEC)
            return
        try:
            task.run()
        except OUTAGE_ERRORS:
            raise
        except Exception:
            logger.exception("maintenance task %s failed", task.name)


def install(*, minutes: int = 1, cluster: str | None = None) -> bool:
    """Let a running cluster call `tick`, or change how it does. Return whether the schedule is new."""
    model = _schedule_model()
    row = {
        "func": TICK,
        "args": None,
        "kwargs": repr({"q_options": TICK_OPTIONS}),
        "hook": None,
        "schedule_type": model.MINUTES,
        "minutes": minutes,
        "repeats": -1,
        "cluster": cluster,
        "intended_date_kwarg": None,
    }
    with transaction.atomic(using=router.db_for_write(model)):
        existing = list(model.objects.filter(name=TICK_NAME).order_by("pk").values_list("pk", flat=True))
        model.objects.filter(pk__in=existing[1:]).delete()  # names are not unique there; two rows would tick twice
        model.objects.update_or_create(name=TICK_NAME, defaults=row)
    return not existing


def uninstall() -> bool:
    """Remove the schedule of `tick`. Return whether there was one."""
    return bool(_schedule_model().objects.filter(name=TICK_NAME).delete()[0])


def list_schedules() -> list[DjangoQSchedule]:
    """Return the schedules of django-q2, except that of `tick`."""
    rows = _schedule_model().objects.exclude(func=TICK).order_by("pk")
    return [DjangoQSchedule(**row) for row in rows.values(*DjangoQSchedule.__dataclass_fields__)]


def disable_schedules(ids: list[int]) -> int:
    """Set `repeats` to 0, which django-q2 never runs. Return how many were enabled."""
    model = _schedule_model()
    return int(model.objects.filter(pk__in=ids).exclude(repeats=0).update(repeats=0))


def get_time_zone() -> str:
    """Return the time zone of its schedules."""
    cluster = getattr(settings, "Q_CLUSTER", {})
    return str(cluster.get("time_zone") or settings.TIME_ZONE)


def is_catching_up() -> bool:
    """Return whether its cluster runs what it missed while it was stopped."""
    return bool(getattr(settings, "Q_CLUSTER", {}).get("catch_up", True))


def _schedule_model() -> Any:
    if not apps.is_installed("django_q"):
        raise DjangoQNotInstalled(_("django-q2 is not part of this site: “django_q” is not in INSTALLED_APPS."))
    from django_q.models import Schedule

    return Schedule
