"""Targets: which job holds the lane, what blocks it, which jobs wait and how long; and actions on targets."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Max, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs.actors import Actor
from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, label_on_phone, link, pause_column, search_url, short_id
from jobs.admin.filters import ChoiceFilter, PausedFilter
from jobs.admin.formatting import (
    badge,
    first_line,
    format_duration,
    format_reason,
    format_relative_time,
    isolate_text,
    name_with_tenant,
    status_badge,
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
    empty_text = _("No targets yet. Jobs with the same target run one at a time; for example a customer or a device.")
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
            title=_("Start no more jobs of this target; running jobs continue"),
        ),
        ObjectAction(
            "unpause",
            pgettext_lazy("verb", "Resume"),
            _("Resume selected targets"),
            ngettext_lazy("%(count)d target resumed", "%(count)d targets resumed", "count"),
            f"{APP}.pause_target",
            lambda row, *, reason, actor: targets.unpause(row.key, tenant=row.tenant, actor=actor),
            lambda target: target.paused,
            skip_inapplicable=True,
        ),
        ObjectAction(
            "resolve",
            pgettext_lazy("verb", "Mark failure as resolved"),
            _("Mark the blocking failures as resolved"),
            ngettext_lazy("%(count)d target unblocked", "%(count)d targets unblocked", "count"),
            f"{APP}.resolve_job",
            _resolve,
            _is_blocked_by_failed_job,
            needs_confirmation=True,
            title=_("The failed job stays failed, and the next job of the target starts"),
        ),
    )
    list_display = ("shown_key", "shown_holder", "queued_jobs", "oldest_wait", "shown_pause")
    list_filter = (PausedFilter, BlockedFilter)
    ordering = ("tenant", "key")
    name_field = "key"
    change_form_template = "jobs/facts_page.html"
    qualifiers = {"tenant": "tenant"}
    fieldsets = (
        (None, {"fields": ("shown_holder", "shown_pause", "queued_jobs", "oldest_wait", "tenant", "created", "id")}),
    )

    shown_pause = pause_column()
    created = column(_("created"), "created_at", format_relative_time)

    def page_version(self, request: HttpRequest, row: Target) -> str:
        return f"{latest_event_id()} {row.paused} {row.paused_at} {row.reason}"

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        for target, state in zip(rows, targets.get_states(list(rows)), strict=True):
            target.lane_state = state

    def hide_payload(self, row: Target) -> None:
        if (holder := _target_state(row).holder) is not None:
            hide_in_job(holder)

    def page_context(self, request: HttpRequest, row: Target) -> dict[str, Any]:
        lane = Job.objects.in_lanes().filter(lane_id=row.pk).in_dispatch_order()
        site = self.admin_site
        rows = [
            (
                link(site, Job, job.pk, short_id(job.pk)),
                isolate_text(job.job_type),
                job.priority,
                format_relative_time(job.created_at),
            )
            for job in lane.defer("params", "checkpoint")[:JOBS_SHOWN]
        ]
        waiting = {
            "id": "target-queue",
            "title": _now("Waiting jobs"),
            "cards": True,
            "headings": [_now("Job"), _now("Type"), _now("Priority"), _now("Submitted")],
            "rows": rows,
            "empty": _now("No waiting jobs."),
            "list_url": search_url(site, "target", row.key) if site.is_registered(Job) else "",
            "list_label": _now("All jobs of this target"),
        }
        return {"title": _now("Target %s") % row.key, "subtitle": None, "tables": [waiting]}

    @computed_column(_("target"))
    def shown_key(self, target: Target) -> SafeString:
        return name_with_tenant(target.key, target.tenant)

    @computed_column(_("status"))
    def shown_holder(self, target: Target) -> SafeString:
        """Show the job that holds the lane, and why it blocks the lane."""
        state = _target_state(target)
        if state.holder is None:
            return badge("plain", _now("idle"), "○")
        holder = link(self.admin_site, Job, state.holder.pk, short_id(state.holder.pk))
        holder_badge = format_html("{} {}", status_badge(state.holder.status), holder or "")
        if state.blocked_by is None:
            return holder_badge
        why = isolate_text(first_line(format_reason(state.holder)))
        blocked = badge("bad", _now("blocked"), "✗")
        until = _now("until retried or resolved")
        if state.blocked_by.status == Status.PAUSED:
            until = _now("until resumed")
        return format_html('{} {} <span class="jc-note jc-small">{}<br>{}</span>', blocked, holder_badge, until, why)

    @computed_column(_("waiting"))
    def queued_jobs(self, target: Target) -> SafeString:
        return label_on_phone(_now("waiting"), _target_state(target).queued)

    @computed_column(_("oldest wait"))
    def oldest_wait(self, target: Target) -> SafeString | None:
        since = _target_state(target).oldest_queued_at
        return None if since is None else label_on_phone(_now("oldest"), format_duration(timezone.now() - since))

    def list_version(self) -> str:
        """Combine job events with pauses of targets, which write no event."""
        paused = Target.objects.filter(paused=True).aggregate(n=Count("pk"), last=Max("paused_at"))
        return f"{latest_event_id()} {paused['n']} {paused['last']}"

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        targets.create_missing_targets()  # targets of jobs submitted a moment ago
        return {}
