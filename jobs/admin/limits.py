"""Concurrency limits, which operators set and pause here, slot leases, and the load that admission measures."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django import forms
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy

from jobs import actors, clock, db
from jobs.admin.base import ReadOnlyAdmin, deny_permission
from jobs.admin.columns import column, computed_column, label_on_phone, pause_column, short_id
from jobs.admin.filters import ChoiceFilter, CreatedFilter, JobTypeFilter, PausedFilter, choice_filter
from jobs.admin.formatting import badge, format_relative_time, format_whole_percent, isolate_text, text_block
from jobs.admin.forms import reason_field
from jobs.admin.object_actions import ObjectAction, ObjectActionAdmin, ServiceBackedAdmin, call_with_key
from jobs.admin.screens import APP, latest_activity_id, latest_event_id
from jobs.conf import UNLIMITED, LimitValues, conf
from jobs.errors import InvalidInput
from jobs.explain.facts import can_serve, load_queue, to_limit
from jobs.models import ConcurrencyLimit, Lease, LeaseKind, LimitScope
from jobs.payload_visibility import hide_in_lease
from jobs.policies.concurrency import Limit
from jobs.rates import MAX_BURST
from jobs.services import direct_calls, limits
from jobs.stats import queries
from jobs.time_text import format_clock
from jobs.validation import fields as validation

VALUES = LimitValues._fields
CHANGE_LIMITS, PAUSE_RESOURCE = f"{APP}.change_limits", f"{APP}.pause_resource"
END_LEASE = f"{APP}.end_lease"


class LimitForm(forms.ModelForm):
    max = forms.IntegerField(
        label=_("Maximum"), required=False, min_value=1, max_value=2**31 - 1, help_text=_("Default: unlimited")
    )
    rate = forms.CharField(
        label=_("Rate"), required=False, max_length=20, help_text=_("How many jobs may start in a time, e.g. 60/min.")
    )
    token_rate = forms.CharField(
        label=_("Token rate"),
        required=False,
        max_length=20,
        help_text=_("How many tokens jobs may use in a time, e.g. 90000/min."),
    )
    burst = forms.IntegerField(
        label=_("Burst"),
        required=False,
        min_value=1,
        max_value=MAX_BURST,
        help_text=_("How many jobs may start at once after a pause. Default: 1"),
    )
    overridden = forms.BooleanField(
        label=_("Override the value from settings"),
        required=False,
        help_text=_("Otherwise the value from the settings applies."),
    )
    reason = reason_field()

    class Meta:
        model = ConcurrencyLimit
        fields = ("scope", "key", *VALUES, "overridden", "paused", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance._state.adding:
            self.initial["reason"] = ""  # the stored one is that of the last change

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
        self._clean_rates(cleaned)
        if "overridden" not in cleaned or not cleaned.keys() >= {*VALUES}:
            return cleaned
        is_entered = not {*VALUES}.isdisjoint(self.changed_data)
        if not cleaned["overridden"] and is_entered and "overridden" not in self.changed_data:
            cleaned["overridden"] = True  # an entered value is an override
        if not cleaned["overridden"]:
            configured = conf.LIMITS.get(scope, key) if scope else UNLIMITED
            cleaned |= configured._asdict()
            if self.instance._state.adding and configured == UNLIMITED and not cleaned.get("paused"):
                self.add_error("max", _("Enter a maximum or a rate, or pause it: without them there is no limit."))
        return cleaned

    def _clean_rates(self, cleaned: dict[str, Any]) -> None:
        for name in ("rate", "token_rate"):
            if cleaned.get(name):
                try:
                    cleaned[name] = validation.parse_rate(cleaned[name], name)
                except InvalidInput as error:
                    self.add_error(name, error.errors[0]["msg"])
        if cleaned.get("burst") and "rate" in cleaned and not cleaned["rate"]:
            self.add_error("burst", _("A burst needs a rate."))


class MaximumForm(forms.ModelForm):
    """The maximum of a limit, edited in the list."""

    max = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)

    class Meta:
        model = ConcurrencyLimit
        fields = ("max",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["max"].widget.attrs["aria-label"] = _now("Maximum: %s") % _describe(self.instance)


def can_pause_resources(request: HttpRequest) -> bool:
    """Return whether the user may pause and resume resources: operators may, without other changes of limits."""
    return request.user.has_perm(PAUSE_RESOURCE) or request.user.has_perm(CHANGE_LIMITS)


def _describe(limit: ConcurrencyLimit) -> str:
    return f"{limit.get_scope_display()} {limit.key}".strip()


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
            _("Pause selected limits (no new jobs start)"),
            ngettext_lazy("%(count)d limit paused", "%(count)d limits paused", "count"),
            PAUSE_RESOURCE,
            lambda row, *, reason, actor: limits.pause(row.scope, row.key, reason=reason, actor=actor),
            lambda limit: not limit.paused,
            skip_inapplicable=True,
        ),
        ObjectAction(
            "unpause",
            pgettext_lazy("verb", "Resume"),
            _("Resume selected limits"),
            ngettext_lazy("%(count)d limit resumed", "%(count)d limits resumed", "count"),
            PAUSE_RESOURCE,
            lambda row, *, reason, actor: limits.unpause(row.scope, row.key, actor=actor),
            lambda limit: limit.paused,
            skip_inapplicable=True,
        ),
        ObjectAction(
            "reset",
            pgettext_lazy("verb", "Reset to settings value"),
            _("Reset selected limits to settings value"),
            ngettext_lazy("%(count)d limit reset", "%(count)d limits reset", "count"),
            CHANGE_LIMITS,
            lambda row, *, reason, actor: limits.reset(row.scope, row.key, reason=reason, actor=actor),
            lambda limit: limit.overridden,
        ),
    )
    list_display = ("shown_limit", "max", "in_use", "shown_rates", "shown_slots", "source", "shown_pause")
    list_editable = ("max",)
    list_filter = (choice_filter("scope", _("scope"), LimitScope.choices), PausedFilter)
    ordering = ("scope", "key")
    name_field = "key"
    fact_fields = ("in_use", "shown_rates", "shown_slots", "source", "shown_pause")

    has_delete_permission = deny_permission

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return request.user.has_perm(CHANGE_LIMITS)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_change_permission(request, obj)

    def _has_permission(self, permission: str, request: HttpRequest) -> bool:
        """Let users who may change limits pause them, too."""
        return super()._has_permission(permission, request) or request.user.has_perm(CHANGE_LIMITS)

    def can_run_on(self, request: HttpRequest, action: ObjectAction, row: ConcurrencyLimit) -> bool:
        return row.scope == LimitScope.RESOURCE or request.user.has_perm(CHANGE_LIMITS)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        if obj is None:
            return [(None, {"fields": ("scope", "key", *VALUES, "overridden", "paused", "reason")})]
        if not self.has_change_permission(request, obj):
            return []
        return [(_("Change"), {"fields": (*VALUES, "overridden", "reason")})]

    def page_context(self, request: HttpRequest, row: ConcurrencyLimit) -> dict[str, Any]:
        self.complete_rows(request, [row])
        maximum = _now("unlimited") if row.max is None else row.max
        return {"title": _describe(row), "subtitle": None, "facts": [(_now("Maximum"), maximum), *self.list_facts(row)]}

    def page_version(self, request: HttpRequest, row: ConcurrencyLimit) -> str:
        return f"{latest_event_id()} {latest_activity_id()}"

    def complete_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
        queue, now = load_queue(), clock.now()
        for row in rows:
            row.now, row.used = now, queue.in_use.of(to_limit(row, now))
            row.worker_slots = sum(worker.slots for worker in queue.workers if can_serve(worker, row))

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        return MaximumForm

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return ("scope", "key") if obj else ()

    def save_model(self, request: HttpRequest, obj: ConcurrencyLimit, form: Any, change: bool) -> None:
        actor, changed = actors.make_user_actor(request.user), set(form.changed_data)
        limit = {"scope": obj.scope, "key": obj.key, "reason": form.cleaned_data.get("reason", "")}
        is_value = not change or isinstance(form, MaximumForm) or not changed.isdisjoint({*VALUES, "overridden"})
        is_value |= "reason" in changed and not obj.paused
        values: dict[str, Any] = {"max": obj.max}
        if not isinstance(form, MaximumForm):
            values |= {"rate": obj.rate or None, "token_rate": obj.token_rate or None, "burst": obj.burst}
        with db.atomic():
            if not change and obj.paused:
                limits.put({**limit, "paused": True}, actor=actor)
            if is_value and (obj.overridden or isinstance(form, MaximumForm)):
                limits.put({**limit, **values}, actor=actor)
            elif is_value:
                limits.put({**limit, "reset": True}, actor=actor)
        stored = ConcurrencyLimit.objects.filter(scope=obj.scope, key=obj.key).first()
        if stored is not None:
            obj.__dict__.update(stored.__dict__)

    shown_pause = pause_column()
    source = column(_("source"), "overridden", lambda is_set: _now("console") if is_set else _now("settings"))

    @computed_column(_("limit"))
    def shown_limit(self, limit: ConcurrencyLimit) -> SafeString:
        return isolate_text(_describe(limit))

    @computed_column(_("rates"))
    def shown_rates(self, limit: ConcurrencyLimit) -> str:
        """Show the rates, and when they let the next job start."""
        parts = [_now("%s starts") % limit.rate] if limit.rate else []
        parts += [_now("burst %d") % limit.burst] if limit.burst else []
        now: datetime = getattr(limit, "now", None) or clock.now()
        buckets = to_limit(limit, now).buckets
        if buckets.tokens is not None:
            parts.append(
                _now("%(rate)s tokens (%(left)d left)")
                % {"rate": limit.token_rate, "left": buckets.tokens.count_whole()}
            )
        if (start := buckets.next_start_at(now)) is not None:
            parts.append(_now("next start %s") % format_clock(start, with_seconds=True))
        return ", ".join(parts)

    @computed_column(_("worker slots"))
    def shown_slots(self, limit: ConcurrencyLimit) -> SafeString | None:
        """Show the slots of the workers that serve it, marked if they are fewer than the maximum."""
        slots: int | None = getattr(limit, "worker_slots", None)
        if slots is None:
            return None
        if not slots:
            return badge("warn", _now("no running worker"), "!")
        if limit.max is None or slots >= limit.max:
            return label_on_phone(_now("worker slots"), slots)
        note = ngettext(
            "Workers have only %d slot: the limit is not reached.",
            "Workers have only %d slots: the limit is not reached.",
            slots,
        )
        return format_html('{}<span class="jc-note jc-small">{}</span>', badge("warn", str(slots), "!"), note % slots)

    @computed_column(_("running"))
    def in_use(self, limit: ConcurrencyLimit) -> SafeString | str | None:
        if limit._state.adding:
            return None
        counted = getattr(limit, "used", None)
        used = queries.count_in_use().of(Limit(limit.scope, limit.key, limit.max)) if counted is None else counted
        if limit.max is None:
            return label_on_phone(_now("running"), used)
        gauge = '<meter class="jc-meter" min="0" max="{}" value="{}">{}</meter> {} / {}'
        return label_on_phone(
            _now("running"), format_html(gauge, limit.max, min(used, limit.max), used, used, limit.max)
        )


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
            _("End selected direct calls (free their slots, request a stop of their handlers)"),
            ngettext_lazy("%(count)d direct call ended", "%(count)d direct calls ended", "count"),
            END_LEASE,
            call_with_key(direct_calls.end),
            direct_calls.is_live_call,
            needs_confirmation=True,
            skip_inapplicable=True,
        ),
    )
    list_display = ("shown_id", "kind", "shown_type", "shown_owner", "granted", "expires", "ended")
    change_form_template = "jobs/facts_page.html"
    list_filter = (choice_filter("kind", _("kind"), LeaseKind.choices), LiveFilter, CreatedFilter, JobTypeFilter)
    qualifiers = {"type": "job_type", "owner": "owner", "tenant": "tenant", "addon": "addon_id"}
    fieldsets = (
        (None, {"fields": ("id", "kind", "shown_type", "tenant", "resource", "addon_id", "cost_units", "shown_owner")}),
        (_("Requested"), {"fields": ("priority", "constraints", "expected_duration_sec")}),
        (_("Times"), {"fields": ("requested", "granted", "heard", "expires", "ended", "shown_outcome")}),
    )

    shown_id = column(_("lease"), "pk", lambda pk: format_html('<span title="{}">{}</span>', pk, short_id(pk)))
    shown_type = column(_("job type"), "job_type", isolate_text)
    shown_owner = column(_("owner"), "owner", isolate_text)
    requested = column(_("requested"), "requested_at", format_relative_time)
    granted = column(_("granted"), "granted_at", format_relative_time)
    heard = column(_("last heartbeat"), "heartbeat_at", format_relative_time)
    expires = column(_("expires"), "expires_at", format_relative_time)
    ended = column(_("ended"), "ended_at", format_relative_time)
    shown_outcome = column(_("outcome"), "outcome", text_block)

    def hide_payload(self, row: Lease) -> None:
        hide_in_lease(row)


class SystemSnapshotAdmin(ReadOnlyAdmin):
    list_display = ("taken", "state", "since", "shown_load", "shown_cpu", "shown_memory")
    change_form_template = "jobs/facts_page.html"
    fieldsets = (
        (None, {"fields": ("state", "since", "shown_load", "shown_cpu", "shown_memory", "taken", "share_clock")}),
    )

    taken = column(_("measured"), "taken_at", format_relative_time)
    since = column(_("in this state since"), "state_since", format_relative_time)
    shown_load = column(_("load"), "load", lambda value: None if value is None else f"{value:.2f}")
    shown_cpu = column(_("CPU"), "cpu", lambda value: None if value is None else format_whole_percent(value))
    shown_memory = column(_("memory"), "memory", lambda value: None if value is None else format_whole_percent(value))
