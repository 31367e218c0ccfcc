"""Addons that ask for remote jobs, and when they did last."""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.reading import StateAdmin
from jobs.admin.showing import isolated, shown
from jobs.models import Poller


class PollerAdmin(StateAdmin):
    list_display = ("shown_addon", "tenant", "most", "polled_at")
    name_field = "addon_id"
    fieldsets = ((None, {"fields": ("id", "shown_addon", "tenant", "most", "polled_at")}),)

    @shown(_("addon"))
    def shown_addon(self, poller: Poller) -> SafeString:
        return isolated(poller.addon_id)
