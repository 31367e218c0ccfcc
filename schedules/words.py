"""When a schedule runs, in words."""

from __future__ import annotations

from datetime import datetime

from cronsim import CronSim, CronSimError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from schedules.cron import CronError, fields_of
from schedules.models import Schedule

_ANY_DAY = datetime(2024, 1, 1)  # noqa: DTZ001 — on a clock without a zone
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def in_words(schedule: Schedule) -> str:
    """Empty for a rule that makes no sense."""
    if schedule.cron is not None:
        return cron_in_words(schedule.cron)
    if schedule.every_sec is not None:
        return every_in_words(schedule.every_sec)
    return _("Once")


def cron_in_words(written: str) -> str:
    try:
        return str(CronSim(fields_of(written), _ANY_DAY).explain())
    except (CronError, CronSimError):
        return ""


def every_in_words(seconds: int) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return _("Every %(count)d %(unit)s") % {"count": seconds // size, "unit": unit}
    if seconds == 1:
        return _("Every second")
    return ngettext("Every %(count)d second", "Every %(count)d seconds", seconds) % {"count": seconds}
