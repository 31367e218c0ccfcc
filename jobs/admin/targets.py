"""Targets: which job holds the lane, what blocks it, which jobs wait and how long; and actions on targets."""

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
from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, link, list_url, pause_column, short_id
from jobs.admin.filters import ChoiceFilter, PausedFilter
from jobs.admin.formatting import (
    badge,
    first_line,
    format_reason,
    format_relative_time,
    isolate_text,
    name_with_tenant,
    status_badge,
    text_block,
)
from jobs.admin.object_actions import ObjectAction, ObjectActionAdmin
from jobs.admin.screens import APP, latest_event_id
from jobs.errors import Conflict
from jobs.models import Job, Target
from jobs.models.expressions import sql_literals
from jobs.payload_visibility import hide_in_job
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.services.targets import TargetState
from jobs.states import Status
from jobs.stats import queries

JOBS_SHOWN = 20


def _target_state(target: Target) -> TargetState:
    """Return the state of the target's lane, from a cached attribute; a list sets it for all rows at once."""
    state: TargetState | None = getattr(target, "lane_state", None)
    if state is None:
        state = target.lane_state = targets.get_states([target])[0]  # type: ignore[attr-defined]
    return state


def _is_blocked_by_failed_job(target: Target) -> bool:
    holder = _target_state(target).blocked_by
    return holder is not None and holder.status == Status.FAILED


def _resolve(target: Target, *, reason: str, actor: Actor) -> None:
    holder = targets.get_states([target])[0].blocked_by
    if holder is None or holder.status != Status.FAILED:
        raise Conflict(_now("no failed job blocks it"))
    job_services.resolve(holder.pk, reason=reason, actor=actor)


class BlockedFilter(ChoiceFilter):
    title = _("blocked")
    parameter_name = "blocked"
    known_choices = (("1", _("Yes")),)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        blocking = Job.objects.filter(holds_lane=True, status__in=sql_literals([Status.FAILED, Status.PAUSED]))
        return queryset.filter(pk__in=blocking.order_by().values("lane_id"))


class TargetAdmin(ObjectActionAdmin, ReadOnlyAdmin):
    empty_text = _(
        "No target has been used. Jobs of one target run one after another: submit one with a target, such as a book, "
        "a customer or a device."
    )
    object_actions = (
        ObjectAction(
            "pause",
            pgettext_lazy("verb", "Pause"),
            _("Pause selected targets"),
            ngettext_lazy("%(count)d target paused", "%(count)d targets paused", "count"),
            f"{APP}.pause_target",
            lambda row, *, reason, actor: targets.pause(row.key, tenant=row.tenant, reason=reason, actor=actor),
            lambda target: not target.paused,
            skip_inapplicable=True,
        ),
        ObjectAction(
            "unpause",
            pgettext_lazy("verb", "Unpause"),
            _("Unpause selected targets"),
            ngettext_lazy("%(count)d target unpaused", "%(count)d targets unpaused", "count"),
            f"{APP}.pause_target",
            lambda row, *, reason, actor: targets.unpause(row.key, tenant=row.tenant, actor=actor),
            lambda target: target.paused,
            skip_inapplicable=True,
        ),
        ObjectAction(
            "resolve",
            pgettext_lazy("verb", "Resolve"),
            _("Resolve what failed and blocks selected targets"),
            ngettext_lazy("%(count)d target opened", "%(count)d targets opened", "count"),
            f"{APP}.resolve_job",
            _resolve,
            _is_blocked_by_failed_job,
            needs_confirmation=True,
        ),
    )
    list_display = ("shown_key", "shown_holder", "queued_jobs", "oldest_wait", "shown_pause")
    list_filter = (PausedFilter, BlockedFilter)
    ordering = ("tenant", "key")
    name_field = "key"
    qualifiers = {"tenant": "tenant"}
    fieldsets = (
        (None, {"fields": ("id", "tenant", "shown_key", "created_at")}),
        (_("Lane"), {"fields": ("shown_holder", "queued_jobs", "oldest_wait")}),
        (_("Pause"), {"fields": ("paused", "paused_by", "paused_at", "shown_reason")}),
    )

    shown_reason = column(_("reason"), "reason", text_block)
    shown_pause = pause_column()

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        for target, state in zip(rows, targets.get_states(list(rows)), strict=True):
            target.lane_state = state

    def hide_payload(self, row: Target) -> None:
        if (holder := _target_state(row).holder) is not None:
            hide_in_job(holder)

    def page_context(self, request: HttpRequest, row: Target) -> dict[str, Any]:
        lane = Job.objects.filter(lane_id=row.pk, gate__in=sql_literals(queries.LANE_GATES)).in_dispatch_order()
        site = self.admin_site
        rows = [
            (link(site, Job, job.pk), isolate_text(job.job_type), job.priority, format_relative_time(job.created_at))
            for job in lane.defer("params", "checkpoint")[:JOBS_SHOWN]
        ]
        can_list = site.is_registered(Job) and '"' not in row.key
        waiting = {
            "id": "target-queue",
            "title": _now("Who waits, in order"),
            "headings": [_now("Job"), _now("Type"), _now("Priority"), _now("Submitted")],
            "rows": rows,
            "empty": _now("Nobody waits."),
            "list_url": f'{list_url(site, Job)}?q=target:"{row.key}"' if can_list else "",
            "list_label": _now("All jobs of this target"),
        }
        return {"tables": [waiting]}

    @computed_column(_("target"))
    def shown_key(self, target: Target) -> SafeString:
        return name_with_tenant(target.key, target.tenant)

    @computed_column(_("lane"))
    def shown_holder(self, target: Target) -> SafeString:
        """Show the job that holds the lane, and why it blocks the lane."""
        state = _target_state(target)
        if state.holder is None:
            return badge("plain", _now("paused") if target.paused else _now("free"), "‖" if target.paused else "○")
        holder = link(self.admin_site, Job, state.holder.pk, short_id(state.holder.pk))
        holder_badge = format_html("{} {}", status_badge(state.holder.status), holder or "")
        if state.blocked_by is None:
            return holder_badge
        why = isolate_text(first_line(format_reason(state.holder)))
        blocked = badge("bad", _now("blocked"), "✗")
        until = _now("until it is resumed, retried or resolved")
        return format_html('{} {} <span class="jc-small">{}<br>{}</span>', blocked, holder_badge, until, why)

    @computed_column(_("queued"))
    def queued_jobs(self, target: Target) -> int:
        return _target_state(target).queued

    @computed_column(_("oldest wait"))
    def oldest_wait(self, target: Target) -> SafeString | None:
        return format_relative_time(_target_state(target).oldest_queued_at)

    def list_version(self) -> str:
        """Combine job events with pauses of targets, which write no event."""
        paused = Target.objects.filter(paused=True).aggregate(n=Count("pk"), last=Max("paused_at"))
        return f"{latest_event_id()} {paused['n']} {paused['last']}"

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        targets.create_missing_targets()  # targets of jobs submitted a moment ago
        return {}
