"""Template filters of the console's pages: `{{ job.status|status_badge }}`, `{{ moment|format_relative_time }}`."""

from __future__ import annotations

from django import template

from jobs.admin import columns, formatting

register = template.Library()
for function in (
    formatting.status_badge,
    formatting.format_relative_time,
    formatting.format_exact_time,
    formatting.format_duration,
    formatting.format_count,
    columns.short_id,
):
    register.filter(function.__name__, function)
