"""Template filters of the console's pages: `{{ job.status|status_badge }}`, `{{ moment|format_relative_time }}`."""

from __future__ import annotations

from django import template

from jobs.admin import base, columns, failures, formatting

register = template.Library()
for function in (
    formatting.status_badge,
    formatting.format_relative_time,
    formatting.format_exact_time,
    formatting.format_duration,
    formatting.format_estimate,
    formatting.format_count,
    base.list_title,
    columns.short_id,
    failures.shorten_error,
):
    register.filter(function.__name__, function)
