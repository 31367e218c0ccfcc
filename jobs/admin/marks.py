"""Small signs that many screens show: the badge of a status, and moments as people say them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin.showing import duration
from jobs.models.job import STATUS_LABELS
from jobs.states import Status

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

ICONS = {  # beside the word, for those who do not see the colour; in every font
    Status.PENDING: "◌",
    Status.QUEUED: "○",
    Status.DISPATCHING: "→",
    Status.RUNNING: "▶",
    Status.PAUSED: "‖",
    Status.COMPLETED: "✓",
    Status.FAILED: "✗",
    Status.SKIPPED: "»",
    Status.CANCELLED: "⊘",
}


def badge(status: str, beside: str = "") -> SafeString:
    """A status as a sign, a colour and a word; `beside` is a short text such as "2/4"."""
    known = Status(status)
    return mark(known.lower(), str(STATUS_LABELS[known]), ICONS[known], beside)


def mark(kind: str, word: str, icon: str, beside: str = "") -> SafeString:
    """`kind` names the colour: a status in small letters, or good, warn, bad, plain."""
    text = f"{word} {beside}" if beside else word
    return format_html('<span class="jc-badge jc-{}"><span aria-hidden="true">{}</span> {}</span>', kind, icon, text)


def when(moment: datetime | None, now: datetime | None = None) -> SafeString | None:
    """ "3 s ago" or "in 2 min", with the exact time to point at."""
    if moment is None:
        return None
    exact = formats.date_format(timezone.localtime(moment), "Y-m-d H:i:s T")
    said = spoken((now or timezone.now()) - moment)
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact, said)


def spoken(age: timedelta) -> str:
    """Rounded down to one unit; the future is negative."""
    if abs(age) < timedelta(seconds=1):
        return _("now")
    return _("in %s") % roughly(-age) if age < timedelta(0) else _("%s ago") % roughly(age)


def roughly(span: timedelta) -> str:
    """A duration in its largest unit that is at least 2: "45 s", "3 min", "26 h", "12 days"."""
    seconds = int(span.total_seconds())
    if seconds < 120:
        return _("%d s") % seconds if seconds else duration(span)
    if seconds < 2 * 3600:
        return _("%d min") % (seconds // 60)
    if seconds < 2 * 86_400:
        return _("%d h") % (seconds // 3600)
    days = seconds // 86_400
    return ngettext("%d day", "%d days", days) % days
