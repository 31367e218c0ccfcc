"""Template filters of the console's pages: `{{ job.status|status_badge }}`, `{{ moment|format_relative_time }}`."""

from __future__ import annotations

from django import template

from jobs.admin import formatting

register = template.Library()
for function in (
    formatting.status_badge,
    formatting.format_relative_time,
    formatting.format_rough_duration,
    formatting.format_duration,
    formatting.format_count,
):
    register.filter(function.__name__, function)
