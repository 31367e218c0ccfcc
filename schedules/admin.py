"""Schedules and their fires, to look at: `schedules.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from jobs.admin.filters import EnabledFilter, JobTypeFilter
from jobs.admin.reading import StateAdmin
from jobs.admin.registration import Registration
from jobs.admin.showing import first_line, isolated, json_block, link, shown, text_block
from jobs.models import Job, JobTemplate
from schedules.models import Schedule, ScheduleFire


class ScheduleAdmin(StateAdmin):
    list_display = ("shown_name", "tenant", "what", "when", "enabled", "last_fire_at", "next_fire_at")
    list_filter = (EnabledFilter, JobTypeFilter)
    list_select_related = ("template",)
    list_defer = ("params", "template__params", "template__retry_policy", "template__tags")
    ordering = ("tenant", "name")
    name_field = "name"
    qualifiers = {"type": "job_type", "tenant": "tenant", "resource": "resource", "target": "target"}
    payload = ("shown_params",)
    fieldsets = (
        (_("What"), {"fields": ("id", "shown_name", "tenant", "what", "priority", "target", "resource", "source")}),
        (_("When"), {"fields": ("when", "run_at", "anchor_at", "max_fires", "enabled", "shown_reason")}),
        (_("If late"), {"fields": ("catch_up", "catch_up_max", "overlap", "misfire_grace_sec", "jitter_sec")}),
        (_("Fires"), {"fields": ("last_fire_at", "next_fire_at", "created_at")}),
    )

    @shown(_("name"))
    def shown_name(self, schedule: Schedule) -> SafeString:
        return isolated(schedule.name)

    @shown(_("job type or template"))
    def what(self, schedule: Schedule) -> SafeString | str | None:
        template = schedule.template
        if template is None:
            return isolated(schedule.job_type)
        return link(self.admin_site, JobTemplate, template.pk, template.name)

    @shown(_("when"))
    def when(self, schedule: Schedule) -> SafeString:
        if schedule.cron is not None:
            return format_html("{} {}", isolated(schedule.cron), isolated(schedule.timezone))
        if schedule.every_sec is not None:
            return isolated(_now("every %d s") % schedule.every_sec)
        return isolated(_now("once"))

    @shown(_("disabled because"))
    def shown_reason(self, schedule: Schedule) -> SafeString | None:
        return text_block(schedule.disabled_reason)

    @shown(_("params"))
    def shown_params(self, schedule: Schedule) -> SafeString | None:
        return json_block(schedule.params)


class ScheduleFireAdmin(StateAdmin):
    list_display = ("id", "schedule_link", "fire_time", "fired_at", "job_link", "first_note")
    list_select_related = ("schedule",)
    list_defer = ("schedule__params",)
    sortable_by = ("id",)
    qualifiers = {"schedule": "schedule", "job": "job"}
    id_field = "schedule_id"
    fieldsets = ((None, {"fields": ("schedule_link", "fire_time", "fired_at", "job_link", "shown_note")}),)

    @shown(_("schedule"))
    def schedule_link(self, fire: ScheduleFire) -> SafeString | str | None:
        return link(self.admin_site, Schedule, fire.schedule_id, fire.schedule.name)

    @shown(_("job"))
    def job_link(self, fire: ScheduleFire) -> SafeString | str | None:
        return link(self.admin_site, Job, fire.job_id)

    @shown(_("note"))
    def first_note(self, fire: ScheduleFire) -> SafeString | None:
        return isolated(first_line(fire.note)) if fire.note else None

    @shown(_("note"))
    def shown_note(self, fire: ScheduleFire) -> SafeString | None:
        return text_block(fire.note)


register = Registration({Schedule: ScheduleAdmin, ScheduleFire: ScheduleFireAdmin})
register.by_itself(admin.site)
