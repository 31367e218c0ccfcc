"""Fires, to look at."""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.reading import StateAdmin
from jobs.admin.showing import first_line, isolated, link, shown, text_block
from jobs.models import Job
from schedules.models import Schedule, ScheduleFire


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
