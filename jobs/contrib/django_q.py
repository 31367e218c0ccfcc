"""django-q2 as a guest: its cluster may drive our housekeeping, and its schedules can be read. Nobody else imports it.

What a cluster is given is the name of `tick`, never arguments: a tick is bounded, changes nothing that is not due, and
may be delivered twice or cut off anywhere.
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

from jobs.engine.database import MISSING
from jobs.engine.maintenance import runner
from jobs.errors import Conflict

logger = logging.getLogger("jobs.contrib.django_q")
TICK = "jobs.contrib.django_q.tick"
TICK_NAME = "jobscheduler:tick"
TICK_SEC = 10.0  # then the rest of the round is left to the next one
OPTIONS = {"ack_failure": True, "save": False, "timeout": 20}


class NotInstalled(Conflict):
    code = "django_q_not_installed"


@dataclass(frozen=True)
class Source:
    """A schedule of django-q2, as it stands in its table."""

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
    """One round of our housekeeping, as far as it goes in a few seconds; what is left is due again next time."""
    end = time.monotonic() + TICK_SEC
    # Our duties, beginning with another one each minute: none is always the one that is left.
    duties = runner.duties()
    start = int(time.time() // 60) % max(len(duties), 1)
    for each in [*duties[start:], *duties[:start]]:
        if time.monotonic() > end:
            logger.warning("a tick was not done in %d s; the rest waits for the next", TICK_SEC)
            return
        try:
            each.run()
        except MISSING:
            raise
        except Exception:
            logger.exception("duty %s failed", each.name)


def install(*, minutes: int = 1, cluster: str | None = None) -> bool:
    """Let a running cluster call `tick`; again changes what was said before. Whether it was new."""
    model = _model()
    row = {
        "func": TICK,
        "args": None,
        "kwargs": repr({"q_options": OPTIONS}),
        "hook": None,
        "schedule_type": model.MINUTES,
        "minutes": minutes,
        "repeats": -1,
        "cluster": cluster,
        "intended_date_kwarg": None,
    }
    with transaction.atomic(using=router.db_for_write(model)):
        known = list(model.objects.filter(name=TICK_NAME).order_by("pk").values_list("pk", flat=True))
        model.objects.filter(pk__in=known[1:]).delete()  # its names are not unique; two of ours would tick twice
        model.objects.update_or_create(name=TICK_NAME, defaults=row)
    return not known


def uninstall() -> bool:
    """Whether there was something to take away."""
    return bool(_model().objects.filter(name=TICK_NAME).delete()[0])


def sources() -> list[Source]:
    """Its schedules, but for our own tick."""
    names = list(Source.__dataclass_fields__)
    return [Source(**row) for row in _model().objects.exclude(func=TICK).order_by("pk").values(*names)]


def disable(ids: list[int]) -> int:
    """Its own way of keeping a schedule that fires no more. Returns how many had fired until now."""
    model = _model()
    return int(model.objects.filter(pk__in=ids).exclude(repeats=0).update(repeats=0))


def time_zone() -> str:
    """Where its schedules are read."""
    cluster = getattr(settings, "Q_CLUSTER", {})
    return str(cluster.get("time_zone") or settings.TIME_ZONE)


def makes_up_for_missed() -> bool:
    return bool(getattr(settings, "Q_CLUSTER", {}).get("catch_up", True))


def _model() -> Any:
    if not apps.is_installed("django_q"):
        raise NotInstalled(_("django-q2 is not part of this site: “django_q” is not in INSTALLED_APPS."))
    from django_q.models import Schedule

    return Schedule
