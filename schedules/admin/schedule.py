"""Schedules in the console: the list, the page with past and upcoming runs, and the form with its preview."""

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
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

from jobs import actors, clock, db
from jobs.admin.base import can_view_payload, fieldset
from jobs.admin.columns import column, computed_column, label_on_phone, link, list_url, short_id
from jobs.admin.filters import ChoiceFilter, EnabledFilter, JobTypeFilter
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
from jobs.admin.forms import EXTRA_PARAMS, PARAM_PREFIX, JsonField, add_errors, build_param_fields, parse_params
from jobs.admin.object_actions import ObjectAction, ServiceBackedAdmin, call_with_key
from jobs.admin.screens import latest_event_id
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.models import Job, JobTemplate
from jobs.redaction import redact
from jobs.registry import Handler, registry
from jobs.services.jobs import SubmitResult
from jobs.services.permissions import RUN_TEMPLATE
from schedules import history, services, validation
from schedules.admin import fires
from schedules.cron import ZONE_NAME_LENGTH, list_canonical_zones
from schedules.describe import describe_rule
from schedules.models import MANY_SKIPS, CatchUp, Schedule, ScheduleFire
from schedules.validation import VALIDATORS, BrokenSchedule

CATCH_UP_CHOICES = [
    (CatchUp.NONE, _("Run none of them")),
    (CatchUp.LATEST, _("Run the latest one")),
    (CatchUp.ALL, _("Run all, up to the maximum")),
]
KIND_FIELDS = {"cron": ("cron",), "every": ("every_sec", "anchor_at"), "once": ("run_at",)}
KIND_CHOICES = [("cron", _("Cron expression")), ("every", _("Interval")), ("once", _("Once"))]
APP_LABEL = Schedule._meta.app_label
UPCOMING_SHOWN, PAST_SHOWN = 10, 20
RULE_CLASS = "jc-rule"  # of the fieldset beside which the preview stands
STATE_FIELDS = (
    *("id", "shown_reason", "shown_note", "next_fire_at", "last_fire_at", "fire_count", "source", "edited"),
    "created_at",
)


class TemplateChoiceField(forms.ModelChoiceField):
    def label_from_instance(self, obj: Any) -> str:
        return obj.name if obj.tenant == "default" else f"{obj.name} ({obj.tenant})"


class ScheduleForm(forms.ModelForm):
    """The form of a schedule. `handler`, if set, has a field for each of its params in place of the JSON field."""

    can_run_templates = False  # of the user
    handler: Handler[..., Any] | None = None
    kind = forms.ChoiceField(
        label=_("Runs"), required=False, choices=KIND_CHOICES, widget=forms.RadioSelect, initial="cron"
    )
    params_of = forms.CharField(required=False, max_length=200, widget=forms.HiddenInput)
    job_type = forms.ChoiceField(label=_("Job type"), required=False, help_text=_("Or choose a template."))
    template = TemplateChoiceField(
        label=_("Template"), required=False, queryset=JobTemplate.objects.defer("params", "retry_policy", "tags")
    )
    params = JsonField(label=_("Params"), required=False)
    timezone = forms.CharField(  # validated by the services, which suggest the correct name
        label=_("Time zone"),
        max_length=ZONE_NAME_LENGTH,
        initial="UTC",
        widget=forms.Select,
        help_text=_("Time zone of the cron expression."),
    )
    catch_up = forms.ChoiceField(
        label=_("Missed runs"),
        choices=CATCH_UP_CHOICES,
        initial=CatchUp.LATEST,
        help_text=_("What to run after downtime."),
    )

    class Meta:
        model = Schedule
        fields = ("tenant", *VALIDATORS)
        help_texts = {
            "cron": _("For example 0 9 * * 1-5 or @daily."),
            "anchor_at": _("Default: now."),
            "misfire_grace_sec": _("Runs later than this count as missed."),
            "catch_up_max": _("Limit of “Run all”."),
            "overlap": _("If the previous run has not finished: start anyway, or skip the run."),
            "jitter_sec": _("Random delay of up to this many seconds."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(choice := self.fields.get("job_type"), forms.ChoiceField):
            names = {*registry.names(), self.instance.job_type} - {""}
            choice.choices = [("", "---------"), *((name, name) for name in sorted(names))]
        if "timezone" in self.fields:
            canonical = list_canonical_zones()
            stored = self.instance.timezone or "UTC"
            zones = canonical if stored in canonical else (stored, *canonical)
            self.fields["timezone"].widget.choices = [(zone, zone) for zone in zones]
        if "kind" in self.fields and not self.instance._state.adding:
            self.initial["kind"] = find_kind(self.instance)
        for name in {"anchor_at", "run_at"} & self.fields.keys():  # one label names only the first of two inputs
            label = self.fields[name].label or name
            for widget, part in zip(self.fields[name].widget.widgets, (_now("date"), _now("time")), strict=False):
                widget.attrs["aria-label"] = f"{label}: {part}"
        if "params_of" in self.fields:
            self.initial["params_of"] = self.handler.name if self.handler is not None else ""

    def collect_fields(self) -> dict[str, Any]:
        """Return the fields for the services: all of a new schedule, the changed ones of a stored schedule.

        A field that the user's page does not show is left out, even if it was posted.
        """
        is_new, shown = self.instance._state.adding, set(self._meta.fields or ()) & self.cleaned_data.keys()
        names = [name for name in VALIDATORS if name in shown and (is_new or name in self.changed_data)]
        values = {name: None if self.cleaned_data[name] == "" else self.cleaned_data[name] for name in names}
        if kind := self.cleaned_data.get("kind"):
            values = {name: value for name, value in values.items() if name not in RULE_OF or RULE_OF[name] == kind}
            if not is_new:
                other = [name for name, owner in RULE_OF.items() if owner != kind]
                values |= {name: None for name in other if getattr(self.instance, name) is not None}
        if self.handler is not None and (params := self._collect_params(self.handler)) is not None:
            values["params"] = params
        return values | {name: value.name for name, value in values.items() if isinstance(value, JobTemplate)}

    def _collect_params(self, handler: Handler[..., Any]) -> dict[str, Any] | None:
        """Return the stored params with the changed ones; None if none is changed. Raise InvalidInput for bad JSON."""
        own = [name for name in self.fields if name == EXTRA_PARAMS or name.startswith(PARAM_PREFIX)]
        changed = [name for name in own if name in self.changed_data]
        if not changed:
            return None
        stored = {} if self.instance._state.adding else self.instance.params
        known = stored if handler.name == self.instance.job_type else {}
        params = {name: value for name, value in known.items() if PARAM_PREFIX + name not in changed}
        return {**params, **parse_params(handler, self, known)}

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
                add_errors(self, error)
        if cleaned.get("params_of", "") != (self.handler.name if self.handler is not None else ""):
            self.data = {**dict(self.data.items()), "params_of": self.handler.name if self.handler is not None else ""}
            self.add_error("job_type", _now("Another job type has other params: check them below."))
        if cleaned.get("params") is None and "params" in cleaned:
            cleaned["params"] = {}
        return cleaned

    def _get_validation_exclusions(self) -> set[str]:
        """Leave validation to the services: a database constraint would report nothing but its name."""
        return (VALIDATORS.keys() - {"name"}) | super()._get_validation_exclusions()  # type: ignore[misc]


RULE_OF = {name: kind for kind, names in KIND_FIELDS.items() for name in names}


def find_kind(schedule: Schedule) -> str:
    """Return the kind of a schedule's rule."""
    if schedule.cron is not None:
        return "cron"
    return "every" if schedule.every_sec is not None else "once"


class RuleForm(forms.Form):
    """The fields of a schedule's form that decide when it is due. Other fields of the request are ignored."""

    kind = forms.CharField(required=False, max_length=10)
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
    if kind := fields.pop("kind", ""):
        fields = {name: value for name, value in fields.items() if RULE_OF.get(name, kind) == kind}
    if len([name for name in ("cron", "every_sec", "run_at") if name in fields]) != 1:
        return RulePreview(problem=_now("Enter a cron expression, an interval or a date (one of them)."))
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
        pgettext_lazy("verb", "Run now"),
        _("Run selected schedules now"),
        ngettext_lazy("%(count)d schedule triggered", "%(count)d schedules triggered", "count"),
        f"{APP_LABEL}.trigger_schedule",
        call_with_key(services.submit_trigger),
    ),
    ObjectAction(
        "skip",
        pgettext_lazy("verb", "Skip next run"),
        _("Skip next run of selected schedules"),
        ngettext_lazy("%(count)d schedule skips its next run", "%(count)d schedules skip their next run", "count"),
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


class SkippingFilter(ChoiceFilter):
    """Filters schedules that have skipped many runs in a row."""

    title = _("runs")
    parameter_name = "skipping"
    known_choices = (("1", _("Keeps skipping")),)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(skips_in_a_row__gte=MANY_SKIPS)


class OverdueFilter(ChoiceFilter):
    title = _("overdue")
    parameter_name = "overdue"
    known_choices = (("1", _("Yes")),)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(pk__in=Schedule.objects.overdue().values("pk"))


class ScheduleAdmin(ServiceBackedAdmin):
    change_list_template = "schedules/schedule_list.html"
    delete_service = staticmethod(services.delete)
    object_actions = OBJECT_ACTIONS
    form = ScheduleForm
    change_form_template = "schedules/schedule_page.html"
    empty_text = _('No schedules yet. Add one here, or declare it in code: @job("report", cron="0 9 * * 1-5").')
    list_display = ("shown_name", "job_source", "shown_rule", "latest_fires", "next_fire")
    list_filter = (EnabledFilter, OverdueFilter, SkippingFilter, JobTypeFilter)
    list_select_related = ("template",)
    list_defer = ("params", "template__params", "template__retry_policy", "template__tags")
    ordering = ("tenant", "name")
    name_field = "name"
    qualifiers = {"type": "job_type", "tenant": "tenant", "resource": "resource", "target": "target"}
    readonly_fields = STATE_FIELDS
    shown_fieldsets = (
        fieldset(_("What"), "shown_name", "tenant", "job_source", "priority", "target", "resource", "fire_time_param"),
        fieldset(_("When"), "shown_rule", "run_at", "anchor_at", "max_fires", "enabled"),
        fieldset(_("Missed runs"), "catch_up", "catch_up_max", "overlap", "misfire_grace_sec", "jitter_sec"),
        fieldset(_("State"), *STATE_FIELDS),
    )
    edited_fieldsets = (
        (
            _("When"),
            {
                "fields": ("kind", "cron", "timezone", "every_sec", "anchor_at", "run_at", "max_fires"),
                "classes": (RULE_CLASS,),
            },
        ),
        fieldset(_("Missed runs"), "catch_up", "catch_up_max", "misfire_grace_sec", "overlap", "jitter_sec"),
    )

    shown_reason = column(_("disabled because"), "disabled_reason", text_block)
    shown_note = column(_("note"), "note", text_block)
    shown_params = column(_("params"), "params", json_block)

    class Media:
        css = {"all": ("schedules/schedules.css",)}
        js = ("schedules/preview.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        status = Job.objects.filter(pk=OuterRef("last_job_id")).values("status")
        return super().get_queryset(request).annotate(last_status=Subquery(status[:1]))

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        if obj is not None and not self.has_change_permission(request, obj):
            payload = ("shown_params",) if can_view_payload(request) else ()
            return [*self.shown_fieldsets, fieldset(_("Payload"), *payload)]
        fields = ("name", *(("tenant",) if obj is None else ()), "enabled", "job_type", "template")
        job = fieldset(_("What"), *fields, "priority", "target", "resource")
        params: tuple[Any, ...] = ()
        if obj is None or can_view_payload(request):
            handler = self._find_handler(request, obj)
            names = ("params",) if handler is None else tuple(build_param_fields(handler))
            params = (fieldset(_("Params"), *names, "params_of", "fire_time_param"),)
        state = () if obj is None else (fieldset(_("State"), "tenant", *STATE_FIELDS, folded=True),)
        return [job, *self.edited_fieldsets, *params, *state]

    def _find_handler(self, request: HttpRequest, obj: Any) -> Handler[..., Any] | None:
        """Return the handler whose params have fields of their own; None for params in JSON."""
        if request.method == "POST":
            job_type = request.POST.get("job_type", "") if request.POST.get("params_of") else ""
        else:
            job_type = request.GET.get("job_type", "") if obj is None else obj.job_type
        try:
            handler = registry.get(job_type[:200])
        except InvalidInput:
            return None
        stored = set() if obj is None or obj.job_type != handler.name else set(obj.params)
        known = {name.removeprefix(PARAM_PREFIX) for name in build_param_fields(handler)}
        return handler if stored <= known and known else None

    def get_form(self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any) -> Any:
        attributes: dict[str, Any] = {"can_run_templates": request.user.has_perm(RUN_TEMPLATE)}
        if obj is None or (self.has_change_permission(request, obj) and can_view_payload(request)):
            handler = self._find_handler(request, obj)
            if handler is not None:
                is_same = isinstance(obj, Schedule) and obj.job_type == handler.name
                fields = build_param_fields(handler, redact(obj.params) if is_same else None)  # type: ignore[union-attr]
                for field in fields.values():
                    field.required = False  # the services decide: the scheduler may fill in one of them
                attributes |= {"handler": handler, **fields}
        form = type("ScheduleForm", (self.form,), attributes)
        return super().get_form(request, obj, change, **{"form": form, **kwargs})

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        actor = actors.make_user_actor(request.user)
        if change:
            services.update(obj.pk, form.collect_fields(), actor=actor)
        else:
            obj.pk = services.create(form.collect_fields(), tenant=form.cleaned_data["tenant"], actor=actor).pk
        obj.refresh_from_db(using=db.alias())

    def result_note(self, action: ObjectAction, results: list[Any]) -> Any:
        submissions = [result for result in results if isinstance(result, SubmitResult)]
        if len(submissions) == 1:
            text = _now("Job:") if submissions[0].created else _now("No new job; this one has the key:")
            return format_html("{} {}", text, link(self.admin_site, Job, submissions[0].job.pk))
        if count := sum(not submission.created for submission in submissions):
            text = ngettext(
                "%d made no new job: its unique key is taken.",
                "%d made no new job: their unique keys are taken.",
                count,
            )
            return text % count
        return ""

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        return {"legend": fires.draw_legend()}

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

    @computed_column(_("last 30 runs"))
    def latest_fires(self, schedule: Schedule) -> SafeString | None:
        """Return the status and time of the last run, a chart of the runs before, and how many were skipped."""
        if schedule.last_fire_at is None:
            return None
        skips = schedule.skips_in_a_row
        note = badge("warn", _now("skipped %d times in a row") % skips, "»") if skips >= MANY_SKIPS else ""
        status = getattr(schedule, "last_status", None)
        shown_status = status_badge(status) if status else ""
        chart = fires.draw_chart(getattr(schedule, "fire_outcomes", ())) or ""
        moment = format_relative_time(schedule.last_fire_at)
        return format_html("{} {}<br>{} {}", shown_status, moment, chart, note)

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
        next_run = format_html("{} {}", format_relative_time(schedule.next_fire_at), notes[0] if notes else "")
        return label_on_phone(_now("next run"), next_run)

    def page_context(self, request: HttpRequest, row: Schedule) -> dict[str, Any]:
        try:
            rule_preview = preview_schedule(row, UPCOMING_SHOWN)
        except BrokenSchedule as error:
            rule_preview = RulePreview(problem=str(error))
        fires_url = f"{list_url(self.admin_site, ScheduleFire)}?q=schedule:{row.pk}"
        past = history.list_runs(row, PAST_SHOWN)
        return {
            "preview": rule_preview,
            "chart": fires.draw_chart(fires.latest_fires([row.pk]).get(row.pk, ())),
            "legend": fires.draw_legend(),
            "skips": row.skips_in_a_row if row.skips_in_a_row >= MANY_SKIPS else 0,
            "past_runs": [(run, link(self.admin_site, Job, run.job_id, short_id(run.job_id))) for run in past],
            "rule_class": RULE_CLASS,
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
        page = {**self.admin_site.each_context(request), "title": _now("Next runs"), "opts": self.opts}
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
            context["rule_class"] = RULE_CLASS
        if obj is None:
            handler = self._find_handler(request, None)
            context |= {"types": registry.names(), "job_type": "" if handler is None else handler.name}
        return super().render_change_form(request, context, *args, **kwargs)
