"""The load of the machine as admission measures it, and the addons that poll for remote jobs."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.formatting import column, isolate_text


class SystemSnapshotAdmin(ReadOnlyAdmin):
    list_display = ("id", "state", "state_since", "load", "cpu", "memory", "taken_at")
    fieldsets = (
        (None, {"fields": ("id", "state", "state_since")}),
        (_("Measured"), {"fields": ("load", "cpu", "memory", "taken_at", "holder", "held_until")}),
        (_("Fair shares"), {"fields": ("share_clock",)}),
    )


class PollerAdmin(ReadOnlyAdmin):
    list_display = ("shown_addon", "tenant", "most", "polled_at")
    name_field = "addon_id"
    fieldsets = ((None, {"fields": ("id", "shown_addon", "tenant", "most", "polled_at")}),)

    shown_addon = column(_("addon"), "addon_id", isolate_text)
