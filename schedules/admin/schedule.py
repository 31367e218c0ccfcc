"""Schedules in the console: what they have done, what they will do, and how they are written."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from jobs import actors, db
from jobs.admin.filters import EnabledFilter, JobTypeFilter
from jobs.admin.marks import badge, mark, when
from jobs.admin.reading import LeanChangeList, may_view_payload
from jobs.admin.showing import first_line, isolated, json_block, link, list_url, shown, text_block
from jobs.errors import JobSchedulerError
from jobs.models import Job, JobTemplate
from schedules import forecast, history, services
from schedules.admin import preview, recent
from schedules.admin.forms import ScheduleForm
from schedules.admin.previewing import Previewing
from schedules.admin.verbs import ScheduleVerbs, offered
from schedules.models import Schedule, ScheduleFire
from schedules.rules import Broken
from schedules.words import in_words

NEXT, PAST = 10, 20
STATE = (
    "id",
    "shown_reason",
    "shown_note",
    "next_fire_at",
    "last_fire_at",
    "fire_count",
    "source",
    "edited",
    "created_at",
)


class ScheduleChangeList(LeanChangeList):
    """Gives each row of a page its last fires: few statements for all of them together."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        fired = recent.of([schedule.pk for schedule in self.result_list])
        for schedule in self.result_list:
            schedule.recent = fired.get(schedule.pk, [])


class ScheduleAdmin(Previewing, ScheduleVerbs):
    form = ScheduleForm
    change_form_template = "schedules/schedule_page.html"
    change_list_template = "jobs/list_that_teaches.html"
    nothing_yet = _(
        'Nothing is scheduled. Add a schedule here, or declare one in code: @job("report", cron="0 9 * * 1-5").'
    )
    list_display = ("shown_name", "what", "shown_rule", "last", "next_fire")
    list_filter = (EnabledFilter, JobTypeFilter)
    list_select_related = ("template",)
    list_defer = ("params", "template__params", "template__retry_policy", "template__tags")
    ordering = ("tenant", "name")
    name_field = "name"
    qualifiers = {"type": "job_type", "tenant": "tenant", "resource": "resource", "target": "target"}
    readonly_fields = STATE
    shown_fieldsets = (
        (_("What"), {"fields": ("shown_name", "tenant", "what", "priority", "target", "resource", "fire_time_param")}),
        (_("When"), {"fields": ("shown_rule", "run_at", "anchor_at", "max_fires", "enabled")}),
        (_("If late"), {"fields": ("catch_up", "catch_up_max", "overlap", "misfire_grace_sec", "jitter_sec")}),
        (_("State"), {"fields": STATE}),
    )
    edited_fieldsets = (
        (_("When"), {"fields": ("cron", "timezone", "every_sec", "anchor_at", "run_at", "max_fires")}),
        (_("If late"), {"fields": ("catch_up", "catch_up_max", "misfire_grace_sec", "overlap", "jitter_sec")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        last = Job.objects.filter(pk=OuterRef("last_job_id")).values("status")
        return super().get_queryset(request).annotate(last_status=Subquery(last[:1]))

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        if obj is not None and not self.has_change_permission(request, obj):
            payload = {"fields": ("shown_params",)} if may_view_payload(request) else {"fields": ()}
            return [*self.shown_fieldsets, (_("Payload"), payload)]
        params = ("params",) if obj is None or may_view_payload(request) else ()
        what = ("name", *(("tenant",) if obj is None else ()), "enabled", "job_type", "template", *params)
        more = ("fire_time_param", "priority", "target", "resource")
        state = () if obj is None else ((_("State"), {"fields": ("tenant", *STATE), "classes": ("collapse",)}),)
        return [(_("What"), {"fields": (*what, *more)}), *self.edited_fieldsets, *state]

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *(("tenant",) if obj is not None else ()))

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        actor = actors.user(request.user)
        if change:
            services.update(obj.pk, form.said(), actor=actor)
        else:
            obj.pk = services.create(form.said(), tenant=form.cleaned_data["tenant"], actor=actor).pk
        obj.refresh_from_db(using=db.alias())

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        services.delete(obj.pk, actor=actors.user(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        for key in list(queryset.values_list("pk", flat=True)):
            services.delete(key, actor=actors.user(request.user))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """Its fires go with it. They may be a million: nobody wants them listed one by one."""
        listed = [isolated(str(schedule)) for schedule in objs]
        missing = set() if self.has_delete_permission(request) else {str(self.opts.verbose_name)}
        return listed, {str(self.opts.verbose_name_plural): len(listed)}, missing, []

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """What another request did meanwhile may refuse what the form could not foresee."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except JobSchedulerError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        schedule = self.get_object(request, unquote(object_id))
        sections = {} if schedule is None else self._sections(request, schedule)
        return super().change_view(request, object_id, form_url, {**sections, **(extra_context or {})})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LeanChangeList]:
        return ScheduleChangeList

    @shown(_("name"))
    def shown_name(self, schedule: Schedule) -> SafeString:
        if schedule.tenant == "default":
            return isolated(schedule.name)
        return format_html('{} <span class="jc-mark">{}</span>', isolated(schedule.name), isolated(schedule.tenant))

    @shown(_("job type or template"))
    def what(self, schedule: Schedule) -> SafeString | str | None:
        template = schedule.template
        if template is None:
            return isolated(schedule.job_type)
        return link(self.admin_site, JobTemplate, template.pk, template.name)

    @shown(_("when"))
    def shown_rule(self, schedule: Schedule) -> SafeString:
        """In words, and as it is written."""
        if schedule.cron is None:
            return isolated(in_words(schedule))
        written = format_html("{} <samp>{}</samp>", isolated(schedule.timezone), isolated(schedule.cron))
        words = in_words(schedule)
        return format_html('{}<br><span class="jc-small jc-muted">{}</span>', words, written) if words else written

    @shown(_("state"))
    def shown_state(self, schedule: Schedule) -> SafeString:
        if schedule.enabled:
            return mark("good", _now("enabled"), "✓")
        why = isolated(first_line(schedule.disabled_reason))
        return format_html("{} {}", mark("plain", _now("disabled"), "⊘"), why)

    @shown(_("last 30 fires"))
    def last(self, schedule: Schedule) -> SafeString | None:
        """When it fired and what became of it, and the fires before."""
        if schedule.last_fire_at is None:
            return None
        status = getattr(schedule, "last_status", None)
        spark = recent.spark(getattr(schedule, "recent", ())) or ""
        return format_html("{} {}<br>{}", badge(status) if status else "", when(schedule.last_fire_at), spark)

    @shown(_("next"))
    def next_fire(self, schedule: Schedule) -> SafeString | None:
        """With a word if clocks change on that day; of a disabled one, why."""
        if not schedule.enabled:
            return self.shown_state(schedule)
        if schedule.next_fire_at is None:
            return None
        try:
            notes = [coming.note for coming in forecast.of_schedule(schedule, 1) if coming.note]
        except Broken:
            notes = []
        return format_html("{} {}", when(schedule.next_fire_at), isolated(notes[0]) if notes else "")

    @shown(_("disabled because"))
    def shown_reason(self, schedule: Schedule) -> SafeString | None:
        return text_block(schedule.disabled_reason)

    @shown(_("note"))
    def shown_note(self, schedule: Schedule) -> SafeString | None:
        return text_block(schedule.note)

    @shown(_("params"))
    def shown_params(self, schedule: Schedule) -> SafeString | None:
        return json_block(schedule.params)

    def _sections(self, request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
        """What the page shows beside the fields."""
        try:
            shown_next = preview.of_schedule(schedule, NEXT)
        except Broken as error:
            shown_next = preview.Preview(problem=str(error))
        past = history.with_outcomes(history.fires_of(schedule)[:PAST])
        return {
            "verbs": [
                (verb, self._verb_url(schedule, verb.name)) for verb in offered(schedule) if self.may(request, verb)
            ],
            "preview": shown_next,
            "spark": recent.spark(recent.of([schedule.pk]).get(schedule.pk, ())),
            "past": [(each, link(self.admin_site, Job, each.fire.job_id)) for each in past],
            "fires_url": self._all_fires(schedule) if len(past) == PAST else "",
        }

    def _verb_url(self, schedule: Schedule, verb: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_verb"
        return reverse(name, args=[schedule.pk, verb], current_app=self.admin_site.name)

    def _all_fires(self, schedule: Schedule) -> str:
        if not self.admin_site.is_registered(ScheduleFire):
            return ""
        return f"{list_url(self.admin_site, ScheduleFire)}?q={schedule.pk}"
