"""How a whole divides into states, as one bar: a part for each state, with a word and a number on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from jobs.admin.marks import ICONS
from jobs.models.job import STATUS_LABELS
from jobs.states import TERMINAL, Status

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

WIDTH, HEIGHT = 200, 10
ORDER = (
    *(Status.COMPLETED, Status.SKIPPED, Status.CANCELLED, Status.FAILED, Status.RUNNING),
    *(Status.DISPATCHING, Status.PAUSED, Status.QUEUED, Status.PENDING),
)
KINDS = {Status.COMPLETED: "completed", Status.FAILED: "failed", Status.RUNNING: "running"}
SVG = (
    '<svg class="jc-spark jc-share" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
)
PART = '<rect class="jc-run-{}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>'


def share_bar(by_status: Mapping[str, int]) -> SafeString | None:
    """The bar, and under it the same in words."""
    counted = {status: by_status[status] for status in ORDER if by_status.get(status)}
    total = sum(counted.values())
    if not total:
        return None
    ended = sum(count for status, count in counted.items() if status in TERMINAL)
    told = _("%(ended)d of %(total)d ended") % {"ended": ended, "total": total}
    x, parts = 0.0, []
    for status, count in counted.items():
        width = WIDTH * count / total
        title = f"{STATUS_LABELS[status]}: {count}"
        parts.append((KINDS.get(status, "other"), f"{x:.2f}", f"{width:.2f}", HEIGHT, title))
        x += width
    bar = format_html(SVG, WIDTH, HEIGHT, told, format_html_join("", PART, parts))
    words = [(ICONS[status], count, STATUS_LABELS[status]) for status, count in counted.items()]
    return format_html('{}<span class="jc-small">{} · {}</span>', bar, told, format_html_join(", ", "{} {} {}", words))
