"""Charts of recent activity: queries of the rollup, and SVG with classes and titles, without script or inline style."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, F, Func, Sum
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from jobs.models import JobMinute
from jobs.models.rollup import BUCKETS_SEC
from jobs.states import Status

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CHART_WIDTH, CHART_HEIGHT, LEFT_MARGIN, BOTTOM_MARGIN = 440, 150, 44, 18
TOP_BUCKET = len(BUCKETS_SEC)


@dataclass(frozen=True)
class Window:
    """The length of a chart, and the width of its slots."""

    name: str
    length: timedelta
    slot: timedelta

    def starts(self, now: datetime) -> list[datetime]:
        """Return the start of every slot, the current one last."""
        seconds = int(self.slot.total_seconds())
        last = datetime.fromtimestamp(int(now.timestamp()) // seconds * seconds, UTC)
        return [last - self.slot * back for back in reversed(range(self.length // self.slot))]


WINDOWS = {
    "1h": Window("1h", HOUR, MINUTE),
    "24h": Window("24h", timedelta(days=1), HOUR),
    "7d": Window("7d", timedelta(days=7), HOUR),
}


@dataclass
class ChartSlot:
    """The jobs that ended in one slot: by outcome, and by bucket of wait and run time."""

    start: datetime
    outcomes: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)

    @property
    def completed(self) -> int:
        return self.outcomes[Status.COMPLETED]

    @property
    def failed(self) -> int:
        return self.outcomes[Status.FAILED]

    @property
    def others(self) -> int:
        return self.outcomes.total() - self.completed - self.failed


class TruncatedHour(Func):
    """The hour of a minute. Django's own function calls Python for each row on SQLite."""

    output_field = DateTimeField()
    template = "date_bin('1 hour', %(expressions)s, to_timestamp(0))"

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="substr(%(expressions)s, 1, 13) || ':00:00'", **extra)


def slot_expression(window: Window) -> F | TruncatedHour:
    """Return the expression for a row's slot in the window."""
    return F("minute") if window.slot == MINUTE else TruncatedHour("minute")


def load_slots(window: Window, now: datetime) -> list[ChartSlot]:
    """Return every slot of the window, empty ones included; one statement."""
    slots = {start: ChartSlot(start) for start in window.starts(now)}
    rows = JobMinute.objects.filter(minute__gte=min(slots)).annotate(slot=slot_expression(window))
    key = ("slot", "outcome", "wait_bucket", "run_bucket")
    for start, outcome, wait, run, jobs in rows.values_list(*key).annotate(Sum("jobs")).order_by():
        if (slot := slots.get(start)) is not None:
            slot.outcomes[outcome] += jobs
            slot.waits[wait] += jobs
            slot.runs[run] += jobs
    return list(slots.values())


def count_outcomes(within: timedelta, now: datetime) -> Counter[str]:
    """Count the ended jobs by outcome."""
    rows = JobMinute.objects.filter(minute__gte=now - within).order_by().values_list("outcome").annotate(Sum("jobs"))
    return Counter(dict(rows))


def list_active_resources(now: datetime, limit: int) -> list[str]:
    """Return the resources in which the most jobs ended in the last 60 minutes."""
    recent = JobMinute.objects.filter(minute__gte=min(WINDOWS["1h"].starts(now)))
    return list(recent.values_list("resource", flat=True).annotate(n=Sum("jobs")).order_by("-n", "resource")[:limit])


def count_by_resource(now: datetime, resources: Collection[str]) -> dict[str, list[int]]:
    """Count for each of these resources how many jobs ended in each of the last 60 minutes."""
    starts = {start: index for index, start in enumerate(WINDOWS["1h"].starts(now))}
    counts: dict[str, list[int]] = {name: [0] * len(starts) for name in resources}
    rows = JobMinute.objects.filter(minute__gte=min(starts), resource__in=sorted(resources)).order_by()
    for resource, start, jobs in rows.values_list("resource", "minute").annotate(Sum("jobs")):
        if start in starts:
            counts[resource][starts[start]] += jobs
    return counts


def percentile(buckets: Mapping[int, int], share: float) -> int | None:
    """Return the bucket in which that share of all started jobs is reached; None if no job started."""
    started = sorted((bucket, jobs) for bucket, jobs in buckets.items() if bucket >= 0)
    rank = share * sum(jobs for _, jobs in started)
    cumulated = 0
    for bucket, jobs in started:
        cumulated += jobs
        if cumulated >= rank:
            return bucket
    return None


def format_bucket(bucket: int) -> str:
    """Return the bound of a bucket, such as "≤ 30 s"."""
    sign, seconds = ("≤", BUCKETS_SEC[bucket]) if bucket < TOP_BUCKET else (">", BUCKETS_SEC[-1])
    if seconds < 1:
        return f"{sign} {seconds * 1000:g} ms"
    if seconds < 60:
        return f"{sign} {seconds:g} s"
    return f"{sign} {seconds / 60:g} min" if seconds < 3600 else f"{sign} {seconds / 3600:g} h"


def throughput_chart(slots: Sequence[ChartSlot], deploys: Sequence[tuple[datetime, str]] = ()) -> SafeString:
    """Return stacked bars: completed at the bottom, then skipped and cancelled, then failed."""
    peak = max([slot.outcomes.total() for slot in slots], default=0) or 1
    width = (CHART_WIDTH - LEFT_MARGIN) / max(len(slots), 1)
    bars = [_bar_shape(slot, LEFT_MARGIN + index * width, width, peak) for index, slot in enumerate(slots)]
    lines = [_deploy_line(slots, at, title) for at, title in deploys]
    shapes = format_html("{}{}{}", _join(bars), _join(lines), _axis_shapes(slots, str(peak)))
    return _wrap_svg(shapes, _("Jobs that ended, over time"))


def latency_chart(slots: Sequence[ChartSlot], part: str) -> SafeString:
    """Return p50 and p95 of `part` ("waits" or "runs"). The scale is logarithmic: each bucket has the same height."""
    curves = (_curve_shape(slots, part, 0.5, "jc-curve"), _curve_shape(slots, part, 0.95, "jc-curve-2"))
    shapes = format_html("{}{}", _join(curves), _axis_shapes(slots, format_bucket(TOP_BUCKET - 1)))
    return _wrap_svg(shapes, _("Time that jobs waited") if part == "waits" else _("Time that jobs ran"))


def sparkline(numbers: Sequence[int], label: str) -> SafeString:
    peak = max(numbers, default=0) or 1
    heights = [20 * count / peak for count in numbers]
    points = ((index * 2, f"{20 - height:.1f}", f"{height:.1f}") for index, height in enumerate(heights))
    bars = format_html_join("", '<rect class="jc-ok" x="{}" y="{}" width="1.6" height="{}"/>', points)
    svg = '<svg class="jc-plot" role="img" aria-label="{}" width="{}" height="20" viewBox="0 0 {} 20">{}</svg>'
    return format_html(svg, label, len(numbers) * 2, len(numbers) * 2, bars)


def _join(shapes: Iterable[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((shape,) for shape in shapes))


def _bar_shape(slot: ChartSlot, x: float, width: float, peak: int) -> SafeString:
    full_height, y = CHART_HEIGHT - BOTTOM_MARGIN - 10, float(CHART_HEIGHT - BOTTOM_MARGIN)
    shapes = []
    for count, css_class in ((slot.completed, "jc-ok"), (slot.others, "jc-other"), (slot.failed, "jc-no")):
        height = full_height * count / peak
        y -= height
        if count:
            values = (css_class, f"{x:.1f}", f"{y:.1f}", f"{max(width - 1, 0.6):.1f}", f"{height:.1f}")
            shapes.append(format_html('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', *values))
    if not shapes:
        return SafeString("")
    params = {"ok": slot.completed, "failed": slot.failed, "others": slot.others, "at": _format_clock(slot.start)}
    title = _("%(at)s: %(ok)d completed, %(failed)d failed, %(others)d other") % params
    return format_html("<g><title>{}</title>{}</g>", title, _join(shapes))


def _deploy_line(slots: Sequence[ChartSlot], at: datetime, title: str) -> SafeString:
    span = (slots[-1].start - slots[0].start).total_seconds() or 1
    share = min(max((at - slots[0].start).total_seconds() / span, 0), 1)
    x = f"{LEFT_MARGIN + share * (CHART_WIDTH - LEFT_MARGIN):.1f}"
    line = '<g><title>{}</title><line class="jc-axis" x1="{}" x2="{}" y1="0" y2="{}" stroke-dasharray="3 2"/></g>'
    return format_html(line, title, x, x, CHART_HEIGHT - BOTTOM_MARGIN)


def _curve_shape(slots: Sequence[ChartSlot], part: str, share: float, css_class: str) -> SafeString:
    """Return a line through the percentiles, with a dot for each: a single one has no line."""
    width, full_height = (CHART_WIDTH - LEFT_MARGIN) / max(len(slots) - 1, 1), CHART_HEIGHT - BOTTOM_MARGIN - 10
    points = []
    for index, slot in enumerate(slots):
        bucket = percentile(getattr(slot, part), share)
        if bucket is not None:
            y = CHART_HEIGHT - BOTTOM_MARGIN - full_height * (bucket + 0.5) / (TOP_BUCKET + 1)
            points.append((f"{LEFT_MARGIN + index * width:.1f}", f"{y:.1f}"))
    dots = format_html_join("", '<circle class="{}" cx="{}" cy="{}" r="2"/>', ((css_class, *point) for point in points))
    return format_html('<polyline class="{}" points="{}"/>{}', css_class, " ".join(map(",".join, points)), dots)


def _axis_shapes(slots: Sequence[ChartSlot], top: str) -> SafeString:
    first, last = (_format_clock(slots[0].start), _format_clock(slots[-1].start)) if slots else ("", "")
    base = CHART_HEIGHT - BOTTOM_MARGIN
    return format_html(
        '<line class="jc-axis" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="0" y="12">{}</text><text x="0" y="{}">0</text>'
        '<text x="{}" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">{}</text>',
        *(LEFT_MARGIN, CHART_WIDTH, base, base, top, base),
        *(LEFT_MARGIN, CHART_HEIGHT - 3, first, CHART_WIDTH, CHART_HEIGHT - 3, last),
    )


def _wrap_svg(shapes: SafeString, label: str) -> SafeString:
    return format_html(
        '<svg class="jc-plot" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">{}</svg>',
        *(label, CHART_WIDTH, CHART_HEIGHT, CHART_WIDTH, CHART_HEIGHT, shapes),
    )


def _format_clock(moment: datetime) -> str:
    local = timezone.localtime(moment)
    return formats.date_format(local, "H:i" if timezone.localdate() == local.date() else "m-d H:i")
