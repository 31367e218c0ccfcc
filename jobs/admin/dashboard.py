"""The former name of `jobs.admin.overview`, which other apps may import."""

from __future__ import annotations

from jobs.admin.overview import show_on_overview

show_on_dashboard = show_on_overview
