"""Durations and moments as text, for documents of the API, for the console and for sentences about jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django.utils import formats, timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext


def format_time(value: datetime | None) -> str | None:
    """Return a time of a document, of an event or of a log line: ISO 8601, UTC with a Z."""
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def format_duration(span: timedelta) -> str:
    """Return a duration: "850 ms", "12.4 s", "2 min 53 s", "1 h 04 min", "3 d 4 h". A negative one counts as 0."""
    seconds = max(span.total_seconds(), 0.0)
    if seconds < 0.9995:
        return _("%d ms") % max(round(seconds * 1000), 1) if seconds else _("%s s") % 0
    if seconds < 59.95:
        return _("%s s") % formats.number_format(Decimal(f"{seconds:.3g}"))
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return (
            _("%(minutes)d min %(seconds)02d s") % {"minutes": minutes, "seconds": rest} if rest else _minutes(minutes)
        )
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        hours, rest = divmod(minutes, 60)
        return _("%(hours)d h %(minutes)02d min") % {"hours": hours, "minutes": rest} if rest else _("%d h") % hours
    days, hours = divmod(round(seconds / 3600), 24)
    return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours} if hours else _("%d d") % days


def format_age(age: timedelta) -> str:
    """Return "3 min ago", rounded down to one unit; a negative age is in the future: "in 3 min"."""
    seconds = int(abs(age).total_seconds())
    if seconds < 1:
        return _("now")
    if seconds < 60:
        text = _("%s s") % seconds
    elif seconds < 3600:
        text = _minutes(seconds // 60)
    elif seconds < 86_400:
        text = _("%d h") % (seconds // 3600)
    else:
        text = _("%d d") % (seconds // 86_400)
    return _("in %s") % text if age < timedelta(0) else _("%s ago") % text


def format_clock(moment: datetime, *, with_seconds: bool = False) -> str:
    """Return a moment for a sentence: "09:06 UTC", on another day "18 Nov, 09:06 UTC"."""
    local = timezone.localtime(moment)
    today = timezone.localdate()
    time = "H:i:s T" if with_seconds else "H:i T"
    if local.date() == today:
        return formats.date_format(local, time)
    # Letters as in Django's filter "date": a language may order and punctuate them differently.
    day = pgettext("date format", "j M, ") if local.year == today.year else pgettext("date format", "j M Y, ")
    return formats.date_format(local, day + time)


def format_exact(moment: datetime, *, with_zone: bool = True, with_date: bool = True) -> str:
    """Return a moment to the millisecond: "2026-11-17 09:06:01.703 UTC"."""
    local = timezone.localtime(moment)
    date = f"{local:%Y-%m-%d} " if with_date else ""
    zone = f" {local:%Z}" if with_zone else ""
    return f"{date}{local:%H:%M:%S}.{local.microsecond // 1000:03}{zone}"


def _minutes(minutes: int) -> str:
    return _("%d min") % minutes
