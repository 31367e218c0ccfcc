"""The last fires of many schedules at a time, and how they look: one small bar each, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from jobs.models.job import STATUS_LABELS
from jobs.states import Status
from schedules.firing import tails
from schedules.models import Schedule, ScheduleFire

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

SHOWN = 30
WIDTH, GAP, HEIGHT = 3, 1, 16
HEIGHTS = {Status.COMPLETED: 10, Status.FAILED: 16}  # told apart by more than their colour
Fired = tuple[datetime, str | None]


def of(ids: Sequence[UUID]) -> dict[UUID, list[Fired]]:
    """Of each schedule its last fires, and what their jobs (retries included) became; None is forgotten."""
    since = _thirtieth(ids)
    if not since:
        return {}
    wanted = Q()
    for key, moment in since.items():
        wanted |= Q(schedule_id=key, fire_time__gte=moment)
    fires = ScheduleFire.objects.filter(wanted).order_by("fire_time")
    rows = list(fires.values_list("schedule_id", "fire_time", "job_id"))
    last = tails(job_id for _key, _at, job_id in rows if job_id is not None)
    found: dict[UUID, list[Fired]] = {}
    for key, moment, job_id in rows:
        found.setdefault(key, []).append((moment, str(last[job_id].status) if job_id in last else None))
    return found


def spark(fired: Sequence[Fired]) -> SafeString | None:
    if not fired:
        return None
    shown = fired[-SHOWN:]
    failed = sum(status == Status.FAILED for _at, status in shown)
    told = _("The last %(count)d fires, %(failed)d of them failed") % {"count": len(shown), "failed": failed}
    bars = format_html_join("", BAR, (_bar(place, *each) for place, each in enumerate(shown)))
    width = len(shown) * (WIDTH + GAP)
    return format_html(SVG, width, HEIGHT, width, HEIGHT, told, bars)


SVG = '<svg class="jc-spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
BAR = '<rect class="jc-run-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'


def _bar(place: int, at: datetime, status: str | None) -> tuple[Any, ...]:
    known = None if status is None else Status(status)
    height = 6 if known is None else HEIGHTS.get(known, 6)
    kind = known.lower() if known in (Status.COMPLETED, Status.FAILED, Status.RUNNING, Status.QUEUED) else "other"
    word = _("forgotten") if known is None else STATUS_LABELS[known]
    told = f"{formats.date_format(timezone.localtime(at), 'Y-m-d H:i')} {word}"
    return (kind, place * (WIDTH + GAP), HEIGHT - height, WIDTH, height, told)


def _thirtieth(ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """From where on to read, of those that have fired: along the index, so that years of fires cost nothing."""
    fires = ScheduleFire.objects.filter(schedule_id=OuterRef("pk")).values("fire_time")
    told = {
        "far": Subquery(fires.order_by("-fire_time")[SHOWN - 1 : SHOWN]),
        "first": Subquery(fires.order_by("fire_time")[:1]),
    }
    rows: Any = Schedule.objects.filter(pk__in=list(ids)).order_by().annotate(**told)
    return {key: far or first for key, far, first in rows.values_list("pk", "far", "first") if far or first}
