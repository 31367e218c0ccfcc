"""Filters and tags of the console's templates: `{{ job.status|status_badge }}`, `{{ moment|format_relative_time }}`."""

from __future__ import annotations

from django import template

from jobs.admin import base, columns, failures, formatting, job_rows

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
register.inclusion_tag("admin/change_list_results.html", name="job_rows")(job_rows.render_table)
