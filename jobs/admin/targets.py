"""Targets: who holds each lane, what keeps it shut, who waits in it and how long; and the verbs that open it."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Max, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs.actors import Actor
from jobs.admin.base import StateAdmin
from jobs.admin.filters import KnownValues, PausedFilter
from jobs.admin.formatting import (
    badge,
    column,
    first_line,
    isolated,
    link,
    list_url,
    mark,
    pause_column,
    reason_of,
    short_id,
    shown,
    text_block,
    when,
)
from jobs.admin.object_actions import Button, ButtonAdmin
from jobs.admin.screens import APP, latest_event
from jobs.errors import Conflict
from jobs.models import Job, Target
from jobs.models.expressions import sql_literals
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.services.targets import TargetState
from jobs.states import Status
from jobs.stats import queries

WAITING = 20


def _state(target: Target) -> TargetState:
    """Looked up once, and for a whole page of a list together."""
    known: TargetState | None = getattr(target, "lane_state", None)
    if known is None:
        known = target.lane_state = targets.states([target])[0]  # type: ignore[attr-defined]
    return known


def _is_failed(target: Target) -> bool:
    holder = _state(target).blocked_by
    return holder is not None and holder.status == Status.FAILED


def _resolve(target: Target, *, reason: str, actor: Actor) -> None:
    holder = targets.states([target])[0].blocked_by
    if holder is None or holder.status != Status.FAILED:
        raise Conflict(_now("no failed job blocks it"))
    job_services.resolve(holder.pk, reason=reason, actor=actor)


class BlockedFilter(KnownValues):
    title = _("blocked")
    parameter_name = "blocked"
    known = (("1", _("Yes")),)

    def narrowed(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        shut = Job.objects.filter(holds_lane=True, status__in=sql_literals([Status.FAILED, Status.PAUSED])).order_by()
        return queryset.filter(pk__in=shut.values("lane_id"))


class TargetAdmin(ButtonAdmin, StateAdmin):
    nothing_yet = _(
        "No target has been used. Jobs of one target run one after another: submit one with a target, such as a book, "
        "a customer or a device."
    )
    buttons = (
        Button(
            "pause",
            pgettext_lazy("verb", "Pause"),
            _("Pause selected targets"),
            ngettext_lazy("%(count)d target paused", "%(count)d targets paused", "count"),
            f"{APP}.pause_target",
            lambda row, *, reason, actor: targets.pause(row.key, tenant=row.tenant, reason=reason, actor=actor),
            lambda target: not target.paused,
            silent=True,
        ),
        Button(
            "unpause",
            pgettext_lazy("verb", "Unpause"),
            _("Unpause selected targets"),
            ngettext_lazy("%(count)d target unpaused", "%(count)d targets unpaused", "count"),
            f"{APP}.pause_target",
            lambda row, *, reason, actor: targets.unpause(row.key, tenant=row.tenant, actor=actor),
            lambda target: target.paused,
            silent=True,
        ),
        Button(
            "resolve",
            pgettext_lazy("verb", "Resolve"),
            _("Resolve what failed and blocks selected targets"),
            ngettext_lazy("%(count)d target opened", "%(count)d targets opened", "count"),
            f"{APP}.resolve_job",
            _resolve,
            _is_failed,
            grave=True,
        ),
    )
    list_display = ("shown_key", "shown_holder", "queued", "oldest", "shown_pause")
    list_filter = (PausedFilter, BlockedFilter)
    ordering = ("tenant", "key")
    name_field = "key"
    qualifiers = {"tenant": "tenant"}
    fieldsets = (
        (None, {"fields": ("id", "tenant", "shown_key", "created_at")}),
        (_("Lane"), {"fields": ("shown_holder", "queued", "oldest")}),
        (_("Pause"), {"fields": ("paused", "paused_by", "paused_at", "shown_reason")}),
    )

    shown_reason = column(_("reason"), "reason", text_block)
    shown_pause = pause_column()

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        for target, state in zip(rows, targets.states(list(rows)), strict=True):
            target.lane_state = state

    def sections(self, request: HttpRequest, row: Target) -> dict[str, Any]:
        lane = Job.objects.filter(lane_id=row.pk, gate__in=sql_literals(queries.LANE_GATES)).in_dispatch_order()
        jobs = list(lane.defer("params", "checkpoint")[:WAITING])
        listed = self.admin_site.is_registered(Job)
        waiting = {
            "id": "target-queue",
            "title": _now("Who waits, in order"),
            "headings": [_now("Job"), _now("Type"), _now("Priority"), _now("Submitted")],
            "rows": [
                (link(self.admin_site, Job, job.pk), isolated(job.job_type), job.priority, when(job.created_at))
                for job in jobs
            ],
            "empty": _now("Nobody waits."),
            "more": f'{list_url(self.admin_site, Job)}?q=target:"{row.key}"' if listed and '"' not in row.key else "",
            "more_word": _now("All jobs of this target"),
        }
        return {"beside": [waiting]}

    @shown(_("target"))
    def shown_key(self, target: Target) -> SafeString:
        if target.tenant == "default":
            return isolated(target.key)
        return format_html('{} <span class="jc-mark">{}</span>', isolated(target.key), isolated(target.tenant))

    @shown(_("lane"))
    def shown_holder(self, target: Target) -> SafeString:
        """Who holds it, and what keeps it shut."""
        state = _state(target)
        if state.holder is None:
            return mark("plain", _now("paused") if target.paused else _now("free"), "‖" if target.paused else "○")
        holder = link(self.admin_site, Job, state.holder.pk, short_id(state.holder.pk))
        held = format_html("{} {}", badge(state.holder.status), holder or "")
        if state.blocked_by is None:
            return held
        why = isolated(first_line(reason_of(state.holder)))
        blocked = mark("bad", _now("blocked"), "✗")
        until = _now("until it is resumed, retried or resolved")
        return format_html('{} {} <span class="jc-small">{}<br>{}</span>', blocked, held, until, why)

    @shown(_("queued"))
    def queued(self, target: Target) -> int:
        return _state(target).queued

    @shown(_("oldest wait"))
    def oldest(self, target: Target) -> SafeString | None:
        return when(_state(target).oldest_queued_at)

    def live_mark(self) -> str:
        """Jobs, and who is paused: that is no event of any job."""
        paused = Target.objects.filter(paused=True).aggregate(n=Count("pk"), last=Max("paused_at"))
        return f"{latest_event()} {paused['n']} {paused['last']}"

    def above_list(self, request: HttpRequest) -> dict[str, Any]:
        targets.bring_in()  # lanes whose jobs came a moment ago are shown, too
        return {}
