"""Plots as SVG from the server: shapes with classes and a word on each; no script, no inline style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from jobs.admin.rollups import Slot, bound, percentile
from jobs.models.rollup import BUCKETS_SEC

if TYPE_CHECKING:
    from datetime import datetime

WIDTH, HEIGHT, LEFT, BOTTOM = 440, 150, 44, 18
TOP_BUCKET = len(BUCKETS_SEC)


def throughput(slots: Sequence[Slot], marks: Sequence[tuple[datetime, str]] = ()) -> SafeString:
    """Stacked bars: completed at the bottom, then what was skipped or cancelled, then failed."""
    most = max([slot.outcomes.total() for slot in slots], default=0) or 1
    width = (WIDTH - LEFT) / max(len(slots), 1)
    bars = [_bar(slot, LEFT + index * width, width, most) for index, slot in enumerate(slots)]
    lines = [_deploy(slots, at, word) for at, word in marks]
    shapes = format_html("{}{}{}", _joined(bars), _joined(lines), _axes(slots, str(most)))
    return _svg(shapes, _("Jobs that ended, over time"))


def latency(slots: Sequence[Slot], part: str) -> SafeString:
    """p50 and p95 of what the rollup's buckets say; a bucket's step is about as large everywhere."""
    curves = [_curve(slots, part, share, kind) for share, kind in ((0.5, "jc-curve"), (0.95, "jc-curve-2"))]
    shapes = format_html("{}{}", _joined(curves), _axes(slots, bound(TOP_BUCKET - 1)))
    return _svg(shapes, _("Time that jobs waited") if part == "waits" else _("Time that jobs ran"))


def sparkline(numbers: Sequence[int], label: str) -> SafeString:
    most = max(numbers, default=0) or 1
    bars = format_html_join(
        "",
        '<rect class="jc-ok" x="{}" y="{}" width="1.6" height="{}"/>',
        ((index * 2, f"{20 - 20 * each / most:.1f}", f"{20 * each / most:.1f}") for index, each in enumerate(numbers)),
    )
    return format_html(
        '<svg class="jc-plot" role="img" aria-label="{}" width="{}" height="20" viewBox="0 0 {} 20">{}</svg>',
        label,
        len(numbers) * 2,
        len(numbers) * 2,
        bars,
    )


def _joined(shapes: Iterable[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((each,) for each in shapes))


def _bar(slot: Slot, x: float, width: float, most: int) -> SafeString:
    room, y = HEIGHT - BOTTOM - 10, float(HEIGHT - BOTTOM)
    shapes = []
    for count, kind in ((slot.completed, "jc-ok"), (slot.others, "jc-other"), (slot.failed, "jc-no")):
        height = room * count / most
        y -= height
        if count:
            place = (kind, f"{x:.1f}", f"{y:.1f}", f"{max(width - 1, 0.6):.1f}", f"{height:.1f}")
            shapes.append(format_html('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', *place))
    if not shapes:
        return SafeString("")
    told = {"ok": slot.completed, "failed": slot.failed, "others": slot.others, "at": _clock(slot.start)}
    title = _("%(at)s: %(ok)d completed, %(failed)d failed, %(others)d other") % told
    return format_html("<g><title>{}</title>{}</g>", title, _joined(shapes))


def _deploy(slots: Sequence[Slot], at: datetime, word: str) -> SafeString:
    span = (slots[-1].start - slots[0].start).total_seconds() or 1
    share = min(max((at - slots[0].start).total_seconds() / span, 0), 1)
    x = f"{LEFT + share * (WIDTH - LEFT):.1f}"
    line = '<g><title>{}</title><line class="jc-axis" x1="{}" x2="{}" y1="0" y2="{}" stroke-dasharray="3 2"/></g>'
    return format_html(line, word, x, x, HEIGHT - BOTTOM)


def _curve(slots: Sequence[Slot], part: str, share: float, kind: str) -> SafeString:
    """A line, and a dot wherever something was measured: one alone would be no line."""
    found = _points(slots, part, share)
    dots = format_html_join("", '<circle class="{}" cx="{}" cy="{}" r="2"/>', ((kind, *each) for each in found))
    return format_html('<polyline class="{}" points="{}"/>{}', kind, " ".join(map(",".join, found)), dots)


def _points(slots: Sequence[Slot], part: str, share: float) -> list[tuple[str, str]]:
    width, room = (WIDTH - LEFT) / max(len(slots) - 1, 1), HEIGHT - BOTTOM - 10
    found = []
    for index, slot in enumerate(slots):
        bucket = percentile(getattr(slot, part), share)
        if bucket is not None:
            y = HEIGHT - BOTTOM - room * (bucket + 0.5) / (TOP_BUCKET + 1)
            found.append((f"{LEFT + index * width:.1f}", f"{y:.1f}"))
    return found


def _axes(slots: Sequence[Slot], top: str) -> SafeString:
    first, last = (_clock(slots[0].start), _clock(slots[-1].start)) if slots else ("", "")
    base = HEIGHT - BOTTOM
    return format_html(
        '<line class="jc-axis" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="0" y="12">{}</text><text x="0" y="{}">0</text>'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>',
        *(LEFT, WIDTH, base, base, top, base),
        *(LEFT, HEIGHT - 3, first, WIDTH, HEIGHT - 3, last),
    )


def _svg(shapes: SafeString, label: str) -> SafeString:
    return format_html(
        '<svg class="jc-plot" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">{}</svg>',
        *(label, WIDTH, HEIGHT, WIDTH, HEIGHT, shapes),
    )


def _clock(moment: datetime) -> str:
    local = timezone.localtime(moment)
    return formats.date_format(local, "H:i" if timezone.localdate() == local.date() else "m-d H:i")
