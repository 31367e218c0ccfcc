"""The rows of the job list as HTML, the same as by Django's own tag in half the time: see docs/decisions/0039."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.templatetags.admin_list import ResultList, result_headers, result_list
from django.contrib.admin.utils import display_for_value
from django.utils.html import conditional_escape, escape
from django.utils.safestring import SafeString, mark_safe


def render_table(cl: Any) -> dict[str, Any]:
    """Return the context of `admin/change_list_results.html`, as Django's tag `result_list` does."""
    if cl.is_popup or cl.formset:
        context: dict[str, Any] = result_list(cl)
        return context
    rows = [ResultList(None, [render_cells(cl, row)]) for row in cl.result_list]
    headers = list(result_headers(cl))
    return {"cl": cl, "result_hidden_fields": [], "result_headers": headers, "num_sorted_fields": 0, "results": rows}


def render_cells(cl: Any, row: Any) -> SafeString:
    """Return the cells of a row. Each column is a method of the admin; the one with a link is a heading."""
    cells, links = [], set(cl.list_display_links)
    for name in cl.list_display:
        value = getattr(cl.model_admin, name)(row)
        text = conditional_escape(value if isinstance(value, str) else display_for_value(value, ""))
        css_class = "action-checkbox" if name == "action_checkbox" else f"field-{name}"
        if name in links:
            url = escape(cl.url_for_result(row))
            cells.append(f'<th class="{css_class}"><a href="{url}">{text}</a></th>')
        else:
            cells.append(f'<td class="{css_class}">{text}</td>')
    return mark_safe("".join(cells))  # noqa: S308 — values are escaped above
