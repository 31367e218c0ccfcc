"""The machine, as admission sees it."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from jobs.admin.reading import StateAdmin


class SystemSnapshotAdmin(StateAdmin):
    list_display = ("id", "state", "state_since", "load", "cpu", "memory", "taken_at")
    fieldsets = (
        (None, {"fields": ("id", "state", "state_since")}),
        (_("Measured"), {"fields": ("load", "cpu", "memory", "taken_at", "holder", "held_until")}),
        (_("Fair shares"), {"fields": ("share_clock",)}),
    )
