"""What bounds the work: limits, which an operator may set and pause here, targets and leases."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs import actors
from jobs.admin.filters import CreatedFilter, JobTypeFilter, PausedFilter, one_of
from jobs.admin.forms import LimitForm
from jobs.admin.reading import LeanAdmin, StateAdmin
from jobs.admin.showing import isolated, shown, text_block
from jobs.engine import wakeup
from jobs.models import ConcurrencyLimit, Lease, LeaseKind, LimitScope, Target


class ConcurrencyLimitAdmin(LeanAdmin):
    """Not deleted but put back: a limit that no longer overrides the settings says what they say."""

    actions = None
    form = LimitForm
    list_display = ("shown_limit", "max", "overridden", "paused", "paused_by", "paused_at")
    list_filter = (one_of("scope", _("scope"), LimitScope.choices), PausedFilter)
    ordering = ("scope", "key")
    name_field = "key"
    readonly_fields = ("paused_by", "paused_at")
    fieldsets = (
        (None, {"fields": ("scope", "key", "max", "overridden")}),
        (_("Pause"), {"fields": ("paused", "reason", "paused_by", "paused_at")}),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.change_limits")

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *(("scope", "key") if obj else ()))

    def save_model(self, request: HttpRequest, obj: ConcurrencyLimit, form: Any, change: bool) -> None:
        if "paused" in form.changed_data:
            obj.paused_by = actors.user(request.user).name if obj.paused else ""
            obj.paused_at = Now() if obj.paused else None
        super().save_model(request, obj, form, change)
        wakeup.notify(wakeup.READY)  # there may be more room now

    @shown(_("limit"))
    def shown_limit(self, limit: ConcurrencyLimit) -> SafeString:
        return isolated(f"{limit.get_scope_display()} {limit.key}".strip())


class TargetAdmin(StateAdmin):
    list_display = ("shown_key", "tenant", "paused", "paused_by", "paused_at", "created_at")
    list_filter = (PausedFilter,)
    ordering = ("tenant", "key")
    name_field = "key"
    qualifiers = {"tenant": "tenant"}
    fieldsets = (
        (None, {"fields": ("id", "tenant", "shown_key", "created_at")}),
        (_("Pause"), {"fields": ("paused", "paused_by", "paused_at", "shown_reason")}),
    )

    @shown(_("key"))
    def shown_key(self, target: Target) -> SafeString:
        return isolated(target.key)

    @shown(_("reason"))
    def shown_reason(self, target: Target) -> SafeString | None:
        return text_block(target.reason)


class LeaseAdmin(StateAdmin):
    list_display = ("id", "kind", "shown_type", "shown_owner", "granted_at", "expires_at", "ended_at")
    list_filter = (one_of("kind", _("kind"), LeaseKind.choices), CreatedFilter, JobTypeFilter)
    sortable_by = ("id",)
    qualifiers = {"type": "job_type", "owner": "owner", "tenant": "tenant", "addon": "addon_id"}
    fieldsets = (
        (None, {"fields": ("id", "kind", "shown_type", "tenant", "resource", "addon_id", "cost_units", "shown_owner")}),
        (_("Asked for"), {"fields": ("priority", "constraints", "expected_duration_sec")}),
        (_("When"), {"fields": ("requested_at", "granted_at", "heartbeat_at", "expires_at", "ended_at")}),
        (_("Outcome"), {"fields": ("shown_outcome",)}),
    )

    @shown(_("job type"))
    def shown_type(self, lease: Lease) -> SafeString:
        return isolated(lease.job_type)

    @shown(_("owner"))
    def shown_owner(self, lease: Lease) -> SafeString:
        return isolated(lease.owner)

    @shown(_("how it ended"))
    def shown_outcome(self, lease: Lease) -> SafeString | None:
        return text_block(lease.outcome)
