"""Charts as SVG with classes and titles, without script or inline style.

All charts of a page have one scale of time: a slot spans its own width, and a moment has its exact place. The shapes
are an image with a sentence; over them lie transparent links, which a screen reader and the Tab key leave out: the
table below the charts has the same links.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin.formatting import format_count
from jobs.admin.windows import TOP_BUCKET, ChartSlot, Window, count_started, percentile
from jobs.models.rollup import BUCKETS_SEC
from jobs.states import Status

LEFT, BOTTOM, TOP, FONT_HEIGHT = 44, 22, 14, 11
LABEL_WIDTH = 96  # of the version at a deploy mark
GRIDLINES = 4
TIME_GRID_SEC = (0.01, 0.1, 1, 10, 60, 600, 3600)
OPEN_BUCKET_SEC = BUCKETS_SEC[-1] * 2  # where the open-ended bucket is drawn
SPARK_WIDTH, SPARK_HEIGHT = 120, 22
MINIMUM_HEIGHT = 2  # of a bar of failures, so that one of them is seen
SKIPPED_OR_CANCELLED = "dropped"  # the tab of the job list


@dataclass(frozen=True)
class Frame:
    """The drawing area of a chart, and its scale of time."""

    width: int
    height: int
    right: int
    start: datetime
    end: datetime

    @property
    def plot_width(self) -> float:
        return self.width - LEFT - self.right

    @property
    def base(self) -> int:
        return self.height - BOTTOM

    @property
    def plot_height(self) -> int:
        return self.base - TOP

    def x(self, moment: datetime) -> float:
        return LEFT + self.plot_width * ((moment - self.start) / (self.end - self.start))


def throughput_chart(
    window: Window, slots: Sequence[ChartSlot], jobs_url: str, deploys: Sequence[tuple[datetime, str]] = ()
) -> SafeString:
    """Return stacked bars: completed at the bottom, then skipped and cancelled, failed on top."""
    frame = Frame(880, 210, 8, slots[0].start, slots[-1].end)
    step = choose_step(max(slot.finished for slot in slots))
    shapes, links = [], []
    for slot in slots:
        bar, bar_links = _stack_bar(frame, slot, step * GRIDLINES, jobs_url, is_current=slot is slots[-1])
        shapes.append(bar)
        links.append(bar_links)
    grid = [
        _draw_gridline(frame, frame.base - frame.plot_height * n / GRIDLINES, format_count(step * n))
        for n in range(GRIDLINES + 1)
    ]
    image = _join([*grid, *shapes, _draw_time_axis(frame, window), *_draw_deploys(frame, deploys)])
    return _wrap_svg(frame, image, _join(links), describe_throughput(slots))


def describe_throughput(slots: Sequence[ChartSlot]) -> str:
    """Return the sentence for the chart of finished jobs."""
    finished, failed = sum(slot.finished for slot in slots), sum(slot.failed for slot in slots)
    if not finished:
        return _("No finished jobs.")
    peak = max(slots, key=lambda slot: slot.finished)
    params = {"finished": format_count(finished), "failed": format_count(failed)}
    params |= {"peak": format_count(peak.finished), "at": format_clock(peak.start)}
    return _("%(finished)s finished, %(failed)s failed; peak %(peak)s at %(at)s") % params


def latency_chart(window: Window, slots: Sequence[ChartSlot], part: str) -> SafeString:
    """Return p50 and p95 of `part` ("waits" or "runs") as step lines on a logarithmic scale, with gaps."""
    frame = Frame(430, 104, 34, slots[0].start, slots[-1].end)
    values = {share: [_percentile_sec(slot, part, share) for slot in slots] for share in (0.95, 0.5)}
    bounds = [value for numbers in values.values() for value in numbers if value is not None]
    low, high, grid = choose_time_scale(min(bounds, default=0.1), max(bounds, default=10))

    def y(seconds: float) -> float:
        return frame.base - frame.plot_height * math.log(seconds / low) / math.log(high / low)

    shapes = [_draw_gridline(frame, y(seconds), format_bound(seconds)) for seconds in grid]
    shapes.append(_draw_time_axis(frame, window, every=2))
    ends = {}
    for share, css_class in ((0.95, "jc-p95"), (0.5, "jc-p50")):  # p50 is thinner, and seen over p95
        places = [None if value is None else y(value) for value in values[share]]
        shapes.append(_draw_steps(frame, slots, places, css_class))
        if last := [place for place in places if place is not None]:
            ends[css_class] = last[-1]
    shapes += _label_ends(frame, ends)
    hits = [_draw_latency_hit(frame, slot, part) for slot in slots if count_started(getattr(slot, part))]
    return _wrap_svg(frame, _join(shapes), _join(hits), describe_latency(slots, part))


def describe_latency(slots: Sequence[ChartSlot], part: str) -> str:
    """Return the sentence for a chart of p50 and p95: its values over the whole time."""
    name = _("Wait before start") if part == "waits" else _("Run time")
    total = sum((getattr(slot, part) for slot in slots), start=type(slots[0].waits)())
    if not count_started(total):
        return _("%s: no job started.") % name
    p50, p95 = (format_percentile(total, share) for share in (0.5, 0.95))
    return _("%(name)s: p50 %(p50)s, p95 %(p95)s") % {"name": name, "p50": p50, "p95": p95}


def sparkline(finished: Sequence[int], failed: Sequence[int], peak: int, label: str) -> SafeString:
    """Return small bars on a baseline, failures red; `peak` is that of the whole column."""
    width, full_height, base = SPARK_WIDTH / max(len(finished), 1), SPARK_HEIGHT - 2, SPARK_HEIGHT - 1
    rows = []
    for index, (count, failures) in enumerate(zip(finished, failed, strict=True)):
        x, bar = f"{index * width:.1f}", f"{max(width - 0.7, 0.8):.1f}"
        height = max(full_height * count / max(peak, 1), 1.0) if count else 0.0
        red = max(full_height * failures / max(peak, 1), MINIMUM_HEIGHT) if failures else 0.0
        if height > red:
            rows.append(("jc-ok", x, f"{base - height:.1f}", bar, f"{height - red:.1f}"))
        if red:
            rows.append(("jc-no", x, f"{base - max(height, red):.1f}", bar, f"{red:.1f}"))
    bars = format_html_join("", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', rows)
    svg = (
        '<svg class="jc-sparkline" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">'
        '<title>{}</title><line class="jc-axis" x1="0" x2="{}" y1="{}" y2="{}"/>{}</svg>'
    )
    size = (SPARK_WIDTH, SPARK_HEIGHT)
    return format_html(svg, label, *size, *size, label, SPARK_WIDTH, base + 0.5, base + 0.5, bars)


# -- scales ------------------------------------------------------------------------------------------------------------


def choose_step(peak: int) -> int:
    """Return the round distance of the gridlines: the smallest of 1, 2, 5, 10, 20, 25, 50, … that is enough."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power // 2 if power > 1 else 0, 5 * power):
            if step * GRIDLINES >= peak and step:
                return step
        power *= 10


def choose_time_scale(shortest: float, longest: float) -> tuple[float, float, list[float]]:
    """Return the bounds of a logarithmic scale that encloses the durations, and its gridlines."""
    low = max([seconds for seconds in TIME_GRID_SEC if seconds <= shortest], default=TIME_GRID_SEC[0])
    high = min([seconds for seconds in TIME_GRID_SEC if seconds >= longest and seconds > low], default=longest)
    grid = [seconds for seconds in TIME_GRID_SEC if low <= seconds <= high]
    return low, high, grid if len(grid) <= 5 else grid[::2]


def list_ticks(window: Window, start: datetime, end: datetime) -> list[datetime]:
    """Return the round local times within the window: every 10 minutes, every 4 hours, or every midnight."""
    step = timedelta(minutes=5)  # any zone's round times are among its multiples
    first = start - timedelta(seconds=start.timestamp() % step.total_seconds())
    moments = (first + step * index for index in range((end - first) // step + 1))
    return [moment for moment in moments if start <= moment <= end and _is_tick(window, timezone.localtime(moment))]


def _is_tick(window: Window, local: datetime) -> bool:
    if window.name == "1h":
        return local.minute % 10 == 0
    return local.minute == 0 and local.hour % (4 if window.name == "24h" else 24) == 0


def format_tick(moment: datetime) -> str:
    """Return the clock, or the name of the day that begins."""
    local = timezone.localtime(moment)
    return formats.date_format(local, "D j") if (local.hour, local.minute) == (0, 0) else f"{local:%H:%M}"


def format_clock(moment: datetime) -> str:
    """Return the local time, on another day than today with the day."""
    local = timezone.localtime(moment)
    return f"{local:%H:%M}" if local.date() == timezone.localdate() else formats.date_format(local, "D j H:i")


def format_span(slot: ChartSlot) -> str:
    return f"{format_clock(slot.start)}–{timezone.localtime(slot.end):%H:%M}"


def format_bound(seconds: float) -> str:
    """Return a round duration: "100 ms", "30 s", "5 min", "2 h"."""
    if seconds < 1:
        return _("%s ms") % f"{seconds * 1000:g}"
    if seconds < 60:
        return _("%s s") % f"{seconds:g}"
    return _("%s min") % f"{seconds / 60:g}" if seconds < 3600 else _("%s h") % f"{seconds / 3600:g}"


def format_bucket(bucket: int) -> str:
    """Return the bound of a bucket, such as "≤ 30 s"."""
    if bucket < TOP_BUCKET:
        return f"≤ {format_bound(BUCKETS_SEC[bucket])}"
    return f"> {format_bound(BUCKETS_SEC[-1])}"


def format_percentile(buckets: dict[int, int], share: float) -> str:
    """Return a percentile such as "≤ 30 s"; "–" if no job started."""
    bucket = percentile(buckets, share)
    return "–" if bucket is None else format_bucket(bucket)


def _percentile_sec(slot: ChartSlot, part: str, share: float) -> float | None:
    bucket = percentile(getattr(slot, part), share)
    if bucket is None:
        return None
    return BUCKETS_SEC[bucket] if bucket < TOP_BUCKET else OPEN_BUCKET_SEC


# -- links -------------------------------------------------------------------------------------------------------------


def finished_query(start: datetime, end: datetime | None = None, status: str = "") -> str:
    """Return the query of the job list for the jobs that finished within a time."""
    params = {"ended_from": _format_utc(start)}
    if end is not None:
        params["ended_to"] = _format_utc(end)
    return urlencode(params | ({"status": status} if status else {}), safe=":,")


def _format_utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"


# -- shapes ------------------------------------------------------------------------------------------------------------


def _join(shapes: Iterable[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((shape,) for shape in shapes))


def _stack_bar(
    frame: Frame, slot: ChartSlot, top: int, jobs_url: str, *, is_current: bool
) -> tuple[SafeString, SafeString]:
    """Return the bar of a slot and the links over it: the whole column, and each part with its status."""
    if not slot.finished:
        return SafeString(""), SafeString("")
    gap = 1 if (frame.x(slot.end) - frame.x(slot.start)) > 3 else 0
    x, width = frame.x(slot.start), frame.x(slot.end) - frame.x(slot.start) - gap
    title = describe_slot(slot, is_current=is_current)
    column = (frame.x(slot.start), TOP, width + gap, frame.plot_height)
    rects, links = [], [_link_rect(f"{jobs_url}?{finished_query(slot.start, slot.end)}", title, column)]
    y = float(frame.base)
    others = slot.finished - slot.completed - slot.failed
    parts = (
        ("jc-ok", slot.completed, str(Status.COMPLETED)),
        ("jc-other", others, SKIPPED_OR_CANCELLED),
        ("jc-no", slot.failed, str(Status.FAILED)),
    )
    for css_class, count, status in parts:
        if count:
            height = max(frame.plot_height * count / top, MINIMUM_HEIGHT if css_class == "jc-no" else 1)
            y -= height
            rects.append((css_class, f"{x:.1f}", f"{y:.1f}", f"{width:.1f}", f"{height:.1f}"))
            url = f"{jobs_url}?{finished_query(slot.start, slot.end, status)}"
            links.append(_link_rect(url, title, (x, y, width, height)))
    shapes = format_html_join("", '<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>', rects)
    return format_html('<g class="jc-bar-now">{}</g>', shapes) if is_current else shapes, _join(links)


def describe_slot(slot: ChartSlot, *, is_current: bool) -> str:
    """Return the title of a bar."""
    params = {"span": format_span(slot), "ok": slot.completed, "failed": slot.failed}
    params["others"] = slot.finished - slot.completed - slot.failed
    title = _("%(span)s: %(ok)d completed, %(failed)d failed, %(others)d skipped or cancelled") % params
    return _("%s (so far)") % title if is_current else title


def _link_rect(url: str, title: str, box: tuple[float, float, float, float]) -> SafeString:
    rect = '<rect class="jc-hit" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    return format_html(f'<a href="{{}}" tabindex="-1">{rect}</a>', url, *(f"{number:.1f}" for number in box), title)


def _draw_deploys(frame: Frame, deploys: Sequence[tuple[datetime, str]]) -> list[SafeString]:
    """Return a line for each start of a new version; the version is written where it does not cover the one before."""
    shapes, free_from = [], 0.0
    for at, version in deploys:
        if not frame.start <= at <= frame.end:
            continue
        x = frame.x(at)
        line = '<line class="jc-deploy" x1="{0}" x2="{0}" y1="4" y2="{1}"><title>{2}</title></line>'
        title = _("Deploy %(version)s at %(at)s") % {"version": version, "at": format_clock(at)}
        shapes.append(format_html(line, f"{x:.1f}", frame.base, title))
        start, anchor = (x + 4, "start") if x + LABEL_WIDTH < frame.width else (x - LABEL_WIDTH, "end")
        if start >= free_from:
            place = f"{x + 4:.1f}" if anchor == "start" else f"{x - 4:.1f}"
            text = '<text class="jc-deploy-text" x="{}" y="10" text-anchor="{}">{}</text>'
            shapes.append(format_html(text, place, anchor, _("deploy %s") % version))
            free_from = (x + 4 if anchor == "start" else start) + LABEL_WIDTH
    return shapes


def _draw_steps(frame: Frame, slots: Sequence[ChartSlot], places: Sequence[float | None], css_class: str) -> SafeString:
    """Return a step line through the slots' values, with gaps where there is none."""
    path: list[str] = []
    before: float | None = None
    for slot, place in zip(slots, places, strict=True):
        if place is not None:
            path.append(f"M{frame.x(slot.start):.1f} {place:.1f}" if before is None else f"V{place:.1f}")
            path.append(f"H{frame.x(slot.end):.1f}")
        before = place
    return format_html('<path class="{}" d="{}"/>', css_class, "".join(path)) if path else SafeString("")


def _label_ends(frame: Frame, ends: dict[str, float]) -> list[SafeString]:
    """Return the names of the lines at their right end, apart from each other."""
    if len(ends) == 2 and abs(ends["jc-p50"] - ends["jc-p95"]) < FONT_HEIGHT:
        middle = (ends["jc-p50"] + ends["jc-p95"]) / 2
        ends = {"jc-p95": middle - FONT_HEIGHT / 2, "jc-p50": middle + FONT_HEIGHT / 2}
    x = frame.width - frame.right + 5
    text = '<text class="{}-text" x="{}" y="{}">{}</text>'
    return [format_html(text, name, x, f"{y + 4:.1f}", name.removeprefix("jc-")) for name, y in ends.items()]


def _draw_latency_hit(frame: Frame, slot: ChartSlot, part: str) -> SafeString:
    buckets = getattr(slot, part)
    jobs = count_started(buckets)
    params = {"span": format_span(slot), "jobs": ngettext("%d job", "%d jobs", jobs) % jobs}
    params |= {"p50": format_percentile(buckets, 0.5), "p95": format_percentile(buckets, 0.95)}
    title = _("%(span)s: p50 %(p50)s, p95 %(p95)s, %(jobs)s") % params
    x, width = frame.x(slot.start), frame.x(slot.end) - frame.x(slot.start)
    rect = '<rect class="jc-hit" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
    return format_html(rect, f"{x:.1f}", TOP, f"{width:.1f}", frame.plot_height, title)


def _draw_gridline(frame: Frame, y: float, label: str) -> SafeString:
    shape = '<line class="jc-grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{}</text>'
    place = f"{y:.1f}"
    return format_html(shape, LEFT, frame.width - frame.right, place, place, LEFT - 6, f"{y + 4:.1f}", label)


def _draw_time_axis(frame: Frame, window: Window, every: int = 1) -> SafeString:
    """Return the marks of round local times; `every` second one has its label where there is little room."""
    ticks = list_ticks(window, frame.start, frame.end)
    line = '<line class="jc-axis" x1="{}" x2="{}" y1="{}" y2="{}"/>'
    shapes = [format_html(line, LEFT, frame.width - frame.right, frame.base, frame.base)]
    for index, moment in enumerate(ticks):
        x = f"{frame.x(moment):.1f}"
        shapes.append(
            format_html('<line class="jc-axis" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>', x, frame.base, frame.base + 4)
        )
        if (len(ticks) - 1 - index) % every == 0:
            anchor = "end" if frame.x(moment) > frame.width - 16 else "middle"
            text = '<text x="{}" y="{}" text-anchor="{}">{}</text>'
            shapes.append(format_html(text, x, frame.height - 5, anchor, format_tick(moment)))
    return _join(shapes)


def _wrap_svg(frame: Frame, image: SafeString, links: SafeString, sentence: str) -> SafeString:
    return format_html(
        '<svg class="jc-plot" viewBox="0 0 {} {}" width="{}" height="{}"><g role="img" aria-label="{}">{}</g>'
        '<g aria-hidden="true">{}</g></svg>',
        *(frame.width, frame.height, frame.width, frame.height, sentence, image, links),
    )
