"""Runs of schedules in the console: the list of rows, the latest of a schedule as a bar chart, the next ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.admin import AdminSite, ModelAdmin
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs.admin.alerts import Alert
from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, link, list_url, short_id
from jobs.admin.formatting import first_line, format_first_line, format_relative_time, status_badge, text_block
from jobs.models import Job
from jobs.models.job import STATUS_LABELS
from jobs.services.jobs import read_latest_attempts
from jobs.states import Status
from jobs.time_text import format_duration
from schedules.models import MANY_SKIPS, Schedule, ScheduleFire

PAST_SHOWN, UPCOMING_SHOWN = 30, 10
MAX_COUNT = 100  # of schedules in an alert
BAR_WIDTH, BAR_GAP, CHART_HEIGHT = 4, 2, 16
SVG = '<svg class="jc-spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
BAR = '<rect class="jc-run-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
VIEW_PERMISSION = "jobscheduler_schedules.view_schedule"


class BarShape(NamedTuple):
    """The bar of an outcome: its colour, its height, and how high it stands above the baseline."""

    kind: str
    height: int
    raised: int = 0


COMPLETED, FAILED = BarShape("completed", 9), BarShape("failed", CHART_HEIGHT)
UNFINISHED, OTHER = BarShape("running", 4, raised=5), BarShape("other", 3)
SHAPES = {Status.COMPLETED: COMPLETED, Status.FAILED: FAILED, Status.SKIPPED: OTHER, Status.CANCELLED: OTHER}
LEGEND = (  # shapes differ, too, for readers who do not see the colours
    (COMPLETED, gettext_lazy("completed")),
    (FAILED, gettext_lazy("failed (full height)")),
    (UNFINISHED, gettext_lazy("not finished (raised)")),
    (OTHER, gettext_lazy("skipped or cancelled (low)")),
)


class ScheduleFireAdmin(ReadOnlyAdmin):
    list_display = ("schedule_link", "due", "outcome", "job_link", "created", "first_note")
    list_display_links = None
    list_select_related = ("schedule",)
    list_defer = ("schedule__params",)
    qualifiers = {"schedule": "schedule", "job": "job"}
    id_field = "schedule_id"
    empty_text = gettext_lazy("No schedule has run yet.")
    fieldsets = ((None, {"fields": ("schedule_link", "due", "created", "outcome", "job_link", "shown_note")}),)
    due = column(gettext_lazy("due"), "fire_time", format_relative_time)
    created = column(gettext_lazy("created"), "fired_at", format_relative_time)
    first_note = column(gettext_lazy("note"), "note", format_first_line)
    shown_note = column(gettext_lazy("note"), "note", text_block)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        fire = super().get_object(request, object_id, from_field)
        if fire is not None:
            _set_latest_attempts([fire])
        return fire

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        _set_latest_attempts(list(rows))

    @computed_column(gettext_lazy("schedule"))
    def schedule_link(self, fire: ScheduleFire) -> SafeString | str | None:
        return link(self.admin_site, Schedule, fire.schedule_id, fire.schedule.name)

    @computed_column(gettext_lazy("job"))
    def job_link(self, fire: ScheduleFire) -> SafeString | str | None:
        return link(self.admin_site, Job, fire.job_id, short_id(fire.job_id))

    @computed_column(gettext_lazy("outcome"))
    def outcome(self, fire: Any) -> SafeString | str:
        return status_badge(fire.latest_attempt.status) if fire.latest_attempt else _("deleted")


def _set_latest_attempts(fires: Sequence[Any]) -> None:
    latest = read_latest_attempts(fire.job_id for fire in fires if fire.job_id is not None)
    for fire in fires:
        fire.latest_attempt = latest.get(fire.job_id)


class FireOutcome(NamedTuple):
    """`status` is that of the last job of the retry chain; None once the job was pruned."""

    due: datetime
    status: str | None


def latest_fires(schedule_ids: Sequence[UUID]) -> dict[UUID, list[FireOutcome]]:
    """Return the latest fires of each schedule with their outcomes, oldest first."""
    own = ScheduleFire.objects.filter(schedule_id=OuterRef("pk")).values("fire_time")
    # The due time to read from is found along the index, so that years of fires cost nothing.
    nth_latest = Subquery(own.order_by("-fire_time")[PAST_SHOWN - 1 : PAST_SHOWN])
    first = Subquery(own.order_by("fire_time")[:1])
    schedules: Any = Schedule.objects.filter(pk__in=list(schedule_ids)).order_by()
    wanted = Q()
    for schedule_id, since in schedules.values_list("pk", Coalesce(nth_latest, first)):
        if since is not None:
            wanted |= Q(schedule_id=schedule_id, fire_time__gte=since)
    if not wanted:
        return {}
    fires = ScheduleFire.objects.filter(wanted).order_by("fire_time")
    rows = list(fires.values_list("schedule_id", "fire_time", "job_id"))
    latest = read_latest_attempts(job_id for _schedule_id, _due, job_id in rows if job_id is not None)
    fires_of: dict[UUID, list[FireOutcome]] = {}
    for schedule_id, due, job_id in rows:
        status = str(latest[job_id].status) if job_id in latest else None
        fires_of.setdefault(schedule_id, []).append(FireOutcome(due, status))
    return fires_of


def draw_chart(fires: Sequence[FireOutcome]) -> SafeString | None:
    """Return the latest fires as a bar chart (SVG), the newest at the right; None without fires."""
    if not fires:
        return None
    drawn = fires[-PAST_SHOWN:]
    failed = sum(fire.status == Status.FAILED for fire in drawn)
    label = _("The last %(count)d runs, %(failed)d of them failed") % {"count": len(drawn), "failed": failed}
    bars = []
    for index, (due, status_text) in enumerate(drawn):
        status = None if status_text is None else Status(status_text)
        shape = OTHER if status is None else SHAPES.get(status, UNFINISHED)
        outcome = _("deleted") if status is None else STATUS_LABELS[status]
        title = f"{formats.date_format(timezone.localtime(due), 'Y-m-d H:i')} {outcome}"
        bars.append(_build_bar(shape, index * (BAR_WIDTH + BAR_GAP), title))
    width = len(drawn) * (BAR_WIDTH + BAR_GAP)
    return format_html(SVG, width, CHART_HEIGHT, width, CHART_HEIGHT, label, format_html_join("", BAR, bars))


def draw_legend() -> SafeString:
    """Return the legend of the bars of `draw_chart`."""
    entries = []
    for shape, label in LEGEND:
        bar = format_html(BAR, *_build_bar(shape, 0, label))
        entries.append((format_html(SVG, BAR_WIDTH, CHART_HEIGHT, BAR_WIDTH, CHART_HEIGHT, label, bar), label))
    return format_html_join(" ", '<span class="jc-whole">{} {}</span>', entries)


def _build_bar(shape: BarShape, x: int, title: Any) -> tuple[Any, ...]:
    return (shape.kind, x, CHART_HEIGHT - shape.height - shape.raised, BAR_WIDTH, shape.height, title)


def next_fires(admin: ModelAdmin, request: HttpRequest) -> SafeString | None:
    """Return the overview's table of upcoming runs; None without any, and without the permission to view them."""
    if not request.user.has_perm(VIEW_PERMISSION):
        return None
    enabled = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False)
    rows = enabled.order_by("next_fire_at").values_list("pk", "name", "next_fire_at", "timezone")[:UPCOMING_SHOWN]
    site = admin.admin_site
    fires = [(link(site, Schedule, pk, first_line(name, 60)), at, zone) for pk, name, at, zone in rows]
    context = {"fires": fires, "schedules_url": _list_url(site)}
    return render_to_string("schedules/next_fires.html", context, request) if fires else None


def alert_overdue(site: AdminSite, request: HttpRequest) -> Iterator[Alert]:
    """Yield an alert if a schedule is overdue: no worker runs the ticker, or the ticker cannot keep up."""
    if not request.user.has_perm(VIEW_PERMISSION):
        return
    due = Schedule.objects.overdue()
    first = due.order_by("next_fire_at").values_list("next_fire_at", flat=True).first()
    if first is None:
        return
    count = due[:MAX_COUNT].count()
    text = ngettext("%(count)d schedule is overdue by %(age)s.", "%(count)d schedules are overdue, by %(age)s.", count)
    message = text % {"count": count, "age": format_duration(timezone.now() - first)}
    link_text = ngettext("Show schedule", "Show schedules", count)
    url = f"{_list_url(site)}?overdue=1" if _list_url(site) else ""
    yield Alert(message, url, link_text, badge=_("Overdue"), icon="◷")


def alert_skipping(site: AdminSite, request: HttpRequest) -> Iterator[Alert]:
    """Yield an alert if schedules have skipped many runs in a row: each run takes longer than the interval."""
    if not request.user.has_perm(VIEW_PERMISSION):
        return
    skipping = Schedule.objects.filter(enabled=True, skips_in_a_row__gte=MANY_SKIPS)
    rows = list(skipping.order_by("-skips_in_a_row").values_list("name", "skips_in_a_row")[:MAX_COUNT])
    if not rows:
        return
    name, skips = rows[0]
    params = {"count": len(rows), "name": first_line(name, 60), "skips": skips}
    text = ngettext(
        "Schedule “%(name)s” has skipped %(skips)d runs in a row: its previous run has not finished.",
        "%(count)d schedules keep skipping runs; “%(name)s” has skipped %(skips)d in a row.",
        len(rows),
    )
    url = f"{_list_url(site)}?skipping=1" if _list_url(site) else ""
    link_text = ngettext("Show schedule", "Show schedules", len(rows))
    yield Alert(text % params, url, link_text, is_bad=False, badge=_("Skipping"), icon="»")


def _list_url(site: AdminSite) -> str:
    return list_url(site, Schedule) if site.is_registered(Schedule) else ""
