"""Schedules in the console: the list, the page with past and upcoming fires, and the form with its preview."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Max, Model, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

from jobs import actors, clock, db
from jobs.admin.base import can_view_payload, fieldset
from jobs.admin.columns import column, computed_column, link, list_url
from jobs.admin.filters import EnabledFilter, JobTypeFilter
from jobs.admin.formatting import (
    badge,
    first_line,
    format_relative_time,
    isolate_text,
    json_block,
    name_with_tenant,
    status_badge,
    text_block,
)
from jobs.admin.forms import JsonField
from jobs.admin.object_actions import ObjectAction, ServiceBackedAdmin, call_with_key
from jobs.admin.screens import latest_event_id
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.models import Job, JobTemplate
from jobs.registry import registry
from jobs.services.permissions import RUN_TEMPLATE
from schedules import history, services, validation
from schedules.admin import fires
from schedules.cron import ZONE_NAME_LENGTH, zone_names
from schedules.describe import describe_rule
from schedules.models import CatchUp, Schedule, ScheduleFire
from schedules.validation import VALIDATORS, BrokenSchedule

CATCH_UP_CHOICES = [
    (CatchUp.NONE, _("Nothing")),
    (CatchUp.LATEST, _("The latest due time")),
    (CatchUp.ALL, _("All due times, up to the cap")),
]
APP_LABEL = Schedule._meta.app_label
UPCOMING_SHOWN, PAST_SHOWN = 10, 20
STATE_FIELDS = (
    *("id", "shown_reason", "shown_note", "next_fire_at", "last_fire_at", "fire_count", "source", "edited"),
    "created_at",
)


class TemplateChoiceField(forms.ModelChoiceField):
    def label_from_instance(self, obj: Any) -> str:
        return obj.name if obj.tenant == "default" else f"{obj.name} ({obj.tenant})"


class ScheduleForm(forms.ModelForm):
    can_run_templates = False  # of the user
    job_type = forms.ChoiceField(label=_("Job type"), required=False, help_text=_("Or a template."))
    template = TemplateChoiceField(
        label=_("Template"), required=False, queryset=JobTemplate.objects.defer("params", "retry_policy", "tags")
    )
    params = JsonField(label=_("Params"), required=False)
    timezone = forms.CharField(  # validated by the services, which suggest the correct name
        label=_("Time zone"),
        max_length=ZONE_NAME_LENGTH,
        initial="UTC",
        widget=forms.Select,
        help_text=_("Where cron is read."),
    )
    catch_up = forms.ChoiceField(
        label=_("Catch-up"),
        choices=CATCH_UP_CHOICES,
        initial=CatchUp.LATEST,
        help_text=_("What is made up for after an absence of the scheduler."),
    )

    class Meta:
        model = Schedule
        fields = ("tenant", *VALIDATORS)
        help_texts = {
            "cron": _("Five fields, or @daily and the like; or say an interval or a single time below."),
            "anchor_at": _("What the interval is counted from. Empty: from now."),
            "misfire_grace_sec": _("How late is still in time."),
            "jitter_sec": _("Spreads the starts over so long; due times stay."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(choice := self.fields.get("job_type"), forms.ChoiceField):
            names = {*registry.names(), self.instance.job_type} - {""}
            choice.choices = [("", "---------"), *((name, name) for name in sorted(names))]
        if "timezone" in self.fields:
            zones = sorted({*zone_names(), self.instance.timezone or "UTC"})
            self.fields["timezone"].widget.choices = [(name, name) for name in zones]

    def collect_fields(self) -> dict[str, Any]:
        """Return the fields for the services: all of a new schedule, the changed ones of a stored schedule.

        A field that the user's page does not show is left out, even if it was posted.
        """
        is_new, shown = self.instance._state.adding, set(self._meta.fields or ()) & self.cleaned_data.keys()
        names = [name for name in VALIDATORS if name in shown and (is_new or name in self.changed_data)]
        values = {name: None if self.cleaned_data[name] == "" else self.cleaned_data[name] for name in names}
        return values | {name: value.name for name, value in values.items() if isinstance(value, JobTemplate)}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("template") and "template" in self.changed_data and not self.can_run_templates:
            self.add_error("template", _now("Using a template requires the permission to run templates."))
        if not self.errors:
            tenant = cleaned.get("tenant", self.instance.tenant)
            schedule_id = None if self.instance._state.adding else self.instance.pk
            try:
                services.require_valid_fields(self.collect_fields(), tenant=tenant, schedule_id=schedule_id)
            except InvalidInput as error:
                for problem in error.errors:
                    field_name, *steps = [str(step) for step in problem["loc"]] or [""]
                    message = f"{'.'.join(steps)}: {problem['msg']}" if steps else problem["msg"]
                    self.add_error(field_name if field_name in self.fields else None, message)
        if cleaned.get("params") is None and "params" in cleaned:
            cleaned["params"] = {}
        return cleaned

    def _get_validation_exclusions(self) -> set[str]:
        """Leave validation to the services: a database constraint would report nothing but its name."""
        return (VALIDATORS.keys() - {"name"}) | super()._get_validation_exclusions()  # type: ignore[misc]


class RuleForm(forms.Form):
    """The fields of a schedule's form that decide when it is due. Other fields of the request are ignored."""

    cron = forms.CharField(required=False, max_length=1000)
    timezone = forms.CharField(required=False, max_length=1000)
    every_sec = forms.CharField(required=False, max_length=100)
    anchor_at = forms.SplitDateTimeField(required=False)
    run_at = forms.SplitDateTimeField(required=False)


@dataclass(frozen=True)
class RulePreview:
    """A described rule and its next due times, or the problem with it."""

    description: str = ""
    zone: str = ""
    problem: str = ""
    upcoming: list[history.UpcomingFire] = field(default_factory=list)
    is_truncated: bool = False


def preview_form(data: Any) -> RulePreview:
    """Preview a form that is not complete yet."""
    form = RuleForm(data)
    if not form.is_valid():
        errors = (f"{name}: {' '.join(map(str, messages))}" for name, messages in form.errors.items())
        return RulePreview(problem=" ".join(errors))
    fields = {name: value for name, value in form.cleaned_data.items() if value not in (None, "")}
    if len([name for name in ("cron", "every_sec", "run_at") if name in fields]) != 1:
        return RulePreview(problem=_now("Say exactly one of a cron expression, an interval and a single time."))
    try:
        if "every_sec" in fields:
            fields["every_sec"] = int(fields["every_sec"])
        else:
            fields.pop("anchor_at", None)
        cleaned = {"timezone": "UTC", **validation.clean_fields(fields, {})}
        return preview_schedule(Schedule(enabled=False, created_at=clock.now(), **cleaned))
    except (JobSchedulerError, ValueError) as error:
        return RulePreview(problem=str(error))


def preview_schedule(schedule: Schedule, count: int = history.DEFAULT_COUNT) -> RulePreview:
    """Preview the rule of a schedule; raise BrokenSchedule for an invalid row."""
    upcoming = history.preview_schedule(schedule, count)
    return RulePreview(describe_rule(schedule), schedule.timezone, "", *upcoming)


OBJECT_ACTIONS = (
    ObjectAction(
        "trigger",
        pgettext_lazy("verb", "Trigger now"),
        _("Trigger selected schedules now"),
        ngettext_lazy("%(count)d schedule triggered", "%(count)d schedules triggered", "count"),
        f"{APP_LABEL}.trigger_schedule",
        call_with_key(services.trigger),
    ),
    ObjectAction(
        "skip",
        pgettext_lazy("verb", "Skip the next fire"),
        _("Skip the next fire of selected schedules"),
        ngettext_lazy("%(count)d schedule skips a fire", "%(count)d schedules skip a fire", "count"),
        f"{APP_LABEL}.skip_schedule",
        call_with_key(services.skip_next),
        lambda schedule: schedule.enabled and schedule.next_fire_at is not None,
    ),
    ObjectAction(
        "enable",
        pgettext_lazy("verb", "Enable"),
        _("Enable selected schedules"),
        ngettext_lazy("%(count)d schedule enabled", "%(count)d schedules enabled", "count"),
        f"{APP_LABEL}.enable_schedule",
        call_with_key(services.enable),
        lambda schedule: not schedule.enabled,
    ),
    ObjectAction(
        "disable",
        pgettext_lazy("verb", "Disable"),
        _("Disable selected schedules"),
        ngettext_lazy("%(count)d schedule disabled", "%(count)d schedules disabled", "count"),
        f"{APP_LABEL}.disable_schedule",
        call_with_key(services.disable),
        lambda schedule: schedule.enabled,
    ),
)


class ScheduleAdmin(ServiceBackedAdmin):
    delete_service = staticmethod(services.delete)
    object_actions = OBJECT_ACTIONS
    form = ScheduleForm
    change_form_template = "schedules/schedule_page.html"
    empty_text = _(
        'Nothing is scheduled. Add a schedule here, or declare one in code: @job("report", cron="0 9 * * 1-5").'
    )
    list_display = ("shown_name", "job_source", "shown_rule", "latest_fires", "next_fire")
    list_filter = (EnabledFilter, JobTypeFilter)
    list_select_related = ("template",)
    list_defer = ("params", "template__params", "template__retry_policy", "template__tags")
    ordering = ("tenant", "name")
    name_field = "name"
    qualifiers = {"type": "job_type", "tenant": "tenant", "resource": "resource", "target": "target"}
    readonly_fields = STATE_FIELDS
    shown_fieldsets = (
        fieldset(_("What"), "shown_name", "tenant", "job_source", "priority", "target", "resource", "fire_time_param"),
        fieldset(_("When"), "shown_rule", "run_at", "anchor_at", "max_fires", "enabled"),
        fieldset(_("If late"), "catch_up", "catch_up_max", "overlap", "misfire_grace_sec", "jitter_sec"),
        fieldset(_("State"), *STATE_FIELDS),
    )
    edited_fieldsets = (
        fieldset(_("When"), "cron", "timezone", "every_sec", "anchor_at", "run_at", "max_fires"),
        fieldset(_("If late"), "catch_up", "catch_up_max", "misfire_grace_sec", "overlap", "jitter_sec"),
    )

    shown_reason = column(_("disabled because"), "disabled_reason", text_block)
    shown_note = column(_("note"), "note", text_block)
    shown_params = column(_("params"), "params", json_block)

    class Media:
        js = ("schedules/preview.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        status = Job.objects.filter(pk=OuterRef("last_job_id")).values("status")
        return super().get_queryset(request).annotate(last_status=Subquery(status[:1]))

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        if obj is not None and not self.has_change_permission(request, obj):
            payload = ("shown_params",) if can_view_payload(request) else ()
            return [*self.shown_fieldsets, fieldset(_("Payload"), *payload)]
        params = ("params",) if obj is None or can_view_payload(request) else ()
        fields = ("name", *(("tenant",) if obj is None else ()), "enabled", "job_type", "template", *params)
        job = fieldset(_("What"), *fields, "fire_time_param", "priority", "target", "resource")
        state = () if obj is None else (fieldset(_("State"), "tenant", *STATE_FIELDS, folded=True),)
        return [job, *self.edited_fieldsets, *state]

    def get_form(self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        return type(form.__name__, (form,), {"can_run_templates": request.user.has_perm(RUN_TEMPLATE)})

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        actor = actors.make_user_actor(request.user)
        if change:
            services.update(obj.pk, form.collect_fields(), actor=actor)
        else:
            obj.pk = services.create(form.collect_fields(), tenant=form.cleaned_data["tenant"], actor=actor).pk
        obj.refresh_from_db(using=db.alias())

    def result_note(self, action: ObjectAction, results: list[Any]) -> Any:
        jobs = [job for job in results if isinstance(job, Job)]
        return format_html("{} {}", _now("It made"), link(self.admin_site, Job, jobs[0].pk)) if len(jobs) == 1 else ""

    def list_version(self) -> str:
        """Return a text that changes with the fires and the due times of schedules."""
        aggregates = (Count("pk"), Count("pk", filter=Q(enabled=True)), Sum("fire_count"), Max("next_fire_at"))
        values = Schedule.objects.aggregate(**{f"part_{n}": aggregate for n, aggregate in enumerate(aggregates)})
        return " ".join([latest_event_id(), *map(str, values.values())])

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        fires_of = fires.latest_fires([schedule.pk for schedule in rows])
        for schedule in rows:
            schedule.fire_outcomes = fires_of.get(schedule.pk, [])

    @computed_column(_("name"))
    def shown_name(self, schedule: Schedule) -> SafeString:
        return name_with_tenant(schedule.name, schedule.tenant)

    @computed_column(_("job type or template"))
    def job_source(self, schedule: Schedule) -> SafeString | str | None:
        template = schedule.template
        if template is None:
            return isolate_text(schedule.job_type)
        return link(self.admin_site, JobTemplate, template.pk, template.name)

    @computed_column(_("when"))
    def shown_rule(self, schedule: Schedule) -> SafeString:
        """Return the rule in words and, for cron, as an expression."""
        description = describe_rule(schedule)
        if schedule.cron is None:
            return isolate_text(description)
        expression = format_html("{} <samp>{}</samp>", isolate_text(schedule.timezone), isolate_text(schedule.cron))
        if not description:
            return expression
        return format_html('{}<br><span class="jc-small jc-muted">{}</span>', description, expression)

    @computed_column(_("state"))
    def shown_state(self, schedule: Schedule) -> SafeString:
        if schedule.enabled:
            return badge("good", _now("enabled"), "✓")
        reason = isolate_text(first_line(schedule.disabled_reason))
        return format_html("{} {}", badge("plain", _now("disabled"), "⊘"), reason)

    @computed_column(_("last 30 fires"))
    def latest_fires(self, schedule: Schedule) -> SafeString | None:
        """Return the status and time of the last fire, and a chart of the fires before."""
        if schedule.last_fire_at is None:
            return None
        status = getattr(schedule, "last_status", None)
        shown_status = status_badge(status) if status else ""
        chart = fires.draw_chart(getattr(schedule, "fire_outcomes", ())) or ""
        return format_html("{} {}<br>{}", shown_status, format_relative_time(schedule.last_fire_at), chart)

    @computed_column(_("next"))
    def next_fire(self, schedule: Schedule) -> SafeString | None:
        """Return the next due time with a note on clock changes; of a disabled schedule, the reason."""
        if not schedule.enabled:
            return self.shown_state(schedule)
        if schedule.next_fire_at is None:
            return None
        try:
            notes = [isolate_text(fire.note) for fire in history.preview_schedule(schedule, 1).fires if fire.note]
        except BrokenSchedule:
            notes = []
        return format_html("{} {}", format_relative_time(schedule.next_fire_at), notes[0] if notes else "")

    def page_context(self, request: HttpRequest, row: Schedule) -> dict[str, Any]:
        try:
            rule_preview = preview_schedule(row, UPCOMING_SHOWN)
        except BrokenSchedule as error:
            rule_preview = RulePreview(problem=str(error))
        fires_url = f"{list_url(self.admin_site, ScheduleFire)}?q={row.pk}"
        past = history.load_outcomes(history.fires_of(row)[:PAST_SHOWN])
        return {
            "preview": rule_preview,
            "chart": fires.draw_chart(fires.latest_fires([row.pk]).get(row.pk, ())),
            "past_fires": [(fire, link(self.admin_site, Job, fire.fire.job_id)) for fire in past],
            "fires_url": fires_url if len(past) == PAST_SHOWN and self.admin_site.is_registered(ScheduleFire) else "",
        }

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Return the preview: the button posts the whole form, the script sends the rule's fields by GET."""
        if not (self.has_view_or_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        data = request.POST if request.method == "POST" else request.GET
        context = {"preview": preview_form(data)}
        if "fragment" in request.GET:
            return TemplateResponse(request, "schedules/preview.html", context)
        page = {**self.admin_site.each_context(request), "title": _now("Next fires"), "opts": self.opts}
        return TemplateResponse(request, "schedules/preview_page.html", {**page, **context})

    def get_urls(self) -> list[URLPattern]:
        protected = csrf_protect(require_http_methods(["GET", "HEAD", "POST"])(self.preview_view))
        view = self.admin_site.admin_view(protected)
        return [path("preview/", view, name=f"{self.opts.app_label}_schedule_preview"), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        obj = context.get("original")
        can_edit = self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)
        if can_edit:
            name = f"admin:{self.opts.app_label}_schedule_preview"
            context["preview_url"] = reverse(name, current_app=self.admin_site.name)
        return super().render_change_form(request, context, *args, **kwargs)
