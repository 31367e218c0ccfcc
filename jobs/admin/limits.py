"""Concurrency limits, which operators set and pause here, slot leases, and the load that admission measures."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs import actors, db
from jobs.admin.base import ReadOnlyAdmin, deny_permission
from jobs.admin.columns import column, computed_column, pause_column
from jobs.admin.filters import ChoiceFilter, CreatedFilter, JobTypeFilter, PausedFilter, choice_filter
from jobs.admin.formatting import isolate_text, text_block
from jobs.admin.forms import reason_field
from jobs.admin.object_actions import ObjectAction, ObjectActionAdmin, ServiceBackedAdmin, call_with_key
from jobs.admin.screens import APP
from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.explain.facts import to_limit
from jobs.models import ConcurrencyLimit, Lease, LeaseKind, LimitScope
from jobs.payload_visibility import hide_in_lease
from jobs.services import direct_calls, limits
from jobs.stats import queries
from jobs.validation import fields as validation

CHANGE_LIMITS = f"{APP}.change_limits"
END_LEASE = f"{APP}.end_lease"


class LimitForm(forms.ModelForm):
    max = forms.IntegerField(
        label=_("Maximum"), required=False, min_value=1, max_value=2**31 - 1, help_text=_("Empty: unlimited.")
    )
    overridden = forms.BooleanField(
        label=_("Overrides the settings"),
        required=False,
        help_text=_("Without it, the maximum is that of the settings."),
    )
    reason = reason_field()

    class Meta:
        model = ConcurrencyLimit
        fields = ("scope", "key", "max", "overridden", "paused", "reason")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        scope, key = cleaned.get("scope", self.instance.scope), cleaned.get("key", self.instance.key)
        if "key" in self.fields and scope == LimitScope.GLOBAL and key:
            self.add_error("key", _("The global limit has no key."))
        elif "key" in self.fields and scope and scope != LimitScope.GLOBAL:
            try:
                (validation.parse_tenant if scope == LimitScope.TENANT else validation.parse_identifier)(key, "key")
            except InvalidInput as error:
                self.add_error("key", error.errors[0]["msg"])
        if "overridden" not in cleaned or "max" not in cleaned:
            return cleaned
        if not cleaned["overridden"] and "max" in self.changed_data and "overridden" not in self.changed_data:
            cleaned["overridden"] = True  # an entered maximum is an override
        if not cleaned["overridden"]:
            cleaned["max"] = conf.LIMITS.get_max(scope, key) if scope else None
            if self.instance._state.adding and cleaned["max"] is None and not cleaned.get("paused"):
                self.add_error("max", _("Enter a maximum, or pause it: without both there is no limit."))
        return cleaned


class MaximumForm(forms.ModelForm):
    """The maximum of a limit, edited in the list."""

    max = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)

    class Meta:
        model = ConcurrencyLimit
        fields = ("max",)


class ConcurrencyLimitAdmin(ServiceBackedAdmin):
    """Limits are not deleted but reset: without an override, the maximum is that of the settings."""

    form = LimitForm
    empty_text = _(
        "No limit has a row yet. Those of the settings appear when the first worker starts; add one here to set or "
        "pause a resource, a job type, a tenant or an addon."
    )
    object_actions = (
        ObjectAction(
            "pause",
            pgettext_lazy("verb", "Pause"),
            _("Pause selected limits: nothing more starts under them"),
            ngettext_lazy("%(count)d limit paused", "%(count)d limits paused", "count"),
            CHANGE_LIMITS,
            lambda row, *, reason, actor: limits.pause(row.scope, row.key, reason=reason, actor=actor),
            lambda limit: not limit.paused,
            skip_inapplicable=True,
        ),
        ObjectAction(
            "unpause",
            pgettext_lazy("verb", "Unpause"),
            _("Unpause selected limits"),
            ngettext_lazy("%(count)d limit unpaused", "%(count)d limits unpaused", "count"),
            CHANGE_LIMITS,
            lambda row, *, reason, actor: limits.unpause(row.scope, row.key, actor=actor),
            lambda limit: limit.paused,
            skip_inapplicable=True,
        ),
        ObjectAction(
            "reset",
            pgettext_lazy("verb", "Put back to the settings"),
            _("Put selected limits back to the settings"),
            ngettext_lazy("%(count)d limit put back", "%(count)d limits put back", "count"),
            CHANGE_LIMITS,
            lambda row, *, reason, actor: limits.reset(row.scope, row.key, reason=reason, actor=actor),
            lambda limit: limit.overridden,
        ),
    )
    list_display = ("shown_limit", "max", "in_use", "source", "shown_pause")
    list_editable = ("max",)
    list_filter = (choice_filter("scope", _("scope"), LimitScope.choices), PausedFilter)
    ordering = ("scope", "key")
    name_field = "key"
    readonly_fields = ("paused_by", "paused_at", "in_use")
    fieldsets = (
        (None, {"fields": ("scope", "key", "max", "overridden", "in_use")}),
        (_("Pause"), {"fields": ("paused", "reason", "paused_by", "paused_at")}),
    )

    has_delete_permission = deny_permission

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm(CHANGE_LIMITS)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_change_permission(request, obj)

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        active = queries.count_in_use()
        for row in rows:
            row.used = active.of(to_limit(row))

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        return MaximumForm

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *(("scope", "key") if obj else ()))

    def save_model(self, request: HttpRequest, obj: ConcurrencyLimit, form: Any, change: bool) -> None:
        actor, changed = actors.make_user_actor(request.user), set(form.changed_data)
        limit = {"scope": obj.scope, "key": obj.key, "reason": form.cleaned_data.get("reason", "")}
        is_maximum = not change or isinstance(form, MaximumForm) or not changed.isdisjoint({"max", "overridden"})
        is_maximum |= "reason" in changed and not obj.paused
        with db.atomic():
            if "paused" in changed or (obj.paused and "reason" in changed):
                limits.put({**limit, "paused": obj.paused}, actor=actor)
            if is_maximum and (obj.overridden or isinstance(form, MaximumForm)):
                limits.put({**limit, "max": obj.max}, actor=actor)
            elif is_maximum:
                limits.put({**limit, "reset": True}, actor=actor)
        stored = ConcurrencyLimit.objects.filter(scope=obj.scope, key=obj.key).first()
        if stored is not None:
            obj.__dict__.update(stored.__dict__)

    shown_pause = pause_column()
    source = column(_("set by"), "overridden", lambda is_set: _now("an operator") if is_set else _now("the settings"))

    @computed_column(_("limit"))
    def shown_limit(self, limit: ConcurrencyLimit) -> SafeString:
        return isolate_text(f"{limit.get_scope_display()} {limit.key}".strip())

    @computed_column(_("in use"))
    def in_use(self, limit: ConcurrencyLimit) -> SafeString | str | None:
        if limit._state.adding:
            return None
        counted = getattr(limit, "used", None)
        used = queries.count_in_use().of(to_limit(limit)) if counted is None else counted
        if limit.max is None:
            return str(used)
        gauge = '<meter class="jc-meter" min="0" max="{}" value="{}">{}</meter> {} / {}'
        return format_html(gauge, limit.max, min(used, limit.max), used, used, limit.max)


class LiveFilter(ChoiceFilter):
    title = _("live direct calls")
    parameter_name = "live"
    known_choices = (("1", _("Yes")),)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(pk__in=direct_calls.list_live_calls().values("pk"))


class LeaseAdmin(ObjectActionAdmin, ReadOnlyAdmin):
    object_actions = (
        ObjectAction(
            "end",
            pgettext_lazy("verb", "End"),
            _("End selected direct calls: their slots are free, their handlers are asked to stop"),
            ngettext_lazy("%(count)d direct call ended", "%(count)d direct calls ended", "count"),
            END_LEASE,
            call_with_key(direct_calls.end),
            direct_calls.is_live_call,
            needs_confirmation=True,
            skip_inapplicable=True,
        ),
    )
    list_display = ("id", "kind", "shown_type", "shown_owner", "granted_at", "expires_at", "ended_at")
    list_filter = (choice_filter("kind", _("kind"), LeaseKind.choices), LiveFilter, CreatedFilter, JobTypeFilter)
    sortable_by = ("id",)
    qualifiers = {"type": "job_type", "owner": "owner", "tenant": "tenant", "addon": "addon_id"}
    fieldsets = (
        (None, {"fields": ("id", "kind", "shown_type", "tenant", "resource", "addon_id", "cost_units", "shown_owner")}),
        (_("Asked for"), {"fields": ("priority", "constraints", "expected_duration_sec")}),
        (_("When"), {"fields": ("requested_at", "granted_at", "heartbeat_at", "expires_at", "ended_at")}),
        (_("Outcome"), {"fields": ("shown_outcome",)}),
    )

    shown_type = column(_("job type"), "job_type", isolate_text)
    shown_owner = column(_("owner"), "owner", isolate_text)
    shown_outcome = column(_("how it ended"), "outcome", text_block)

    def hide_payload(self, row: Lease) -> None:
        hide_in_lease(row)


class SystemSnapshotAdmin(ReadOnlyAdmin):
    list_display = ("id", "state", "state_since", "load", "cpu", "memory", "taken_at")
    fieldsets = (
        (None, {"fields": ("id", "state", "state_since")}),
        (_("Measured"), {"fields": ("load", "cpu", "memory", "taken_at", "holder", "held_until")}),
        (_("Fair shares"), {"fields": ("share_clock",)}),
    )
