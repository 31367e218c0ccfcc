"""Columns of lists and read-only fields of pages, and links to the rows of a site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.admin import AdminSite, ModelAdmin, display
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin.formatting import badge, first_line, format_json, format_relative_time, isolate_text
from jobs.models import Job
from jobs.models.expressions import JsonBytes

MAX_PARAMS_BYTES = 2000  # a list does not read larger params


def computed_column(description: Any, ordering: str | None = None) -> Callable[[Callable[[Any, Any], Any]], Any]:
    """Make a method a column or read-only field. It shows None as the empty value, on pages as in lists."""

    def decorate(method: Callable[[Any, Any], Any]) -> Any:
        @wraps(method)
        def show(self: ModelAdmin, row: Model) -> Any:
            value = method(self, row)
            return self.get_empty_value_display() if value is None else value

        return display(description=description, ordering=ordering)(show)

    return decorate


def column(description: Any, field: str, formatter: Callable[[Any], Any]) -> Any:
    """Return a column or read-only field that shows one attribute of a row."""
    return computed_column(description)(lambda admin, row: formatter(getattr(row, field)))


def link_column(description: Any, model: type[Model], field: str) -> Any:
    """Return a column or read-only field that links to the row whose key is in `field`."""
    return computed_column(description)(lambda admin, row: link(admin.admin_site, model, getattr(row, field)))


def pause_column() -> Any:
    """Return a column for the pause of a target or a limit: by whom, since when and why."""

    def show(admin: ModelAdmin, row: Any) -> SafeString | None:
        if not row.paused:
            return None
        since, why = format_relative_time(row.paused_at) or "", isolate_text(first_line(row.reason))
        two_lines = '{} {} {}<br><span class="jc-small">{}</span>'
        return format_html(two_lines, badge("warn", _("paused"), "‖"), isolate_text(row.paused_by), since, why)

    return computed_column(gettext_lazy("pause"))(show)


def label_on_phone(label: Any, value: Any) -> SafeString:
    """Return a value with a label that shows where a row is a card, without the headings of its table."""
    return format_html('<span class="jc-phone-label">{}</span> {}', label, value)


def change_url(site: AdminSite, model: type[Model], pk: Any) -> str:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return reverse(name, args=[quote(pk)], current_app=site.name)


def list_url(site: AdminSite, model: type[Model]) -> str:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(name, current_app=site.name)


def search_url(site: AdminSite, qualifier: str, value: str, **filters: str) -> str:
    """Return the address of the job list with a search for one value, such as type:"mail.send", and filters."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    query = urlencode({**filters, "q": f'{qualifier}:"{quoted}"'})
    return f"{list_url(site, Job)}?{query}"


def ids_url(jobs_url: str, job_ids: Iterable[Any]) -> str:
    """Return the address of the list of exactly these jobs."""
    return f"{jobs_url}?ids={','.join(map(str, job_ids))}"


def link(site: AdminSite, model: type[Model], pk: Any, text: str = "") -> SafeString | str | None:
    """Return a link to a row's page, or only its name if the site does not show that model."""
    if pk is None:
        return None
    if not site.is_registered(model):
        return isolate_text(text or str(pk))
    return format_html('<a href="{}"><bdi>{}</bdi></a>', change_url(site, model, pk), text or str(pk))


def short_id(pk: Any) -> str:
    """Return the end of an id, which differs even for ids of the same millisecond."""
    return f"…{str(pk)[-12:]}"


def load_params_lines(jobs: Iterable[Job]) -> dict[UUID, str]:
    """Return each job's params in one line. Large ones are not read; secrets are masked before a text is cut."""
    job_ids = [job.pk for job in jobs]
    small = Job.objects.filter(pk__in=job_ids).order_by().annotate(size=JsonBytes("params"))
    rows = small.filter(size__lte=MAX_PARAMS_BYTES).values_list("pk", "params")
    lines = {pk: first_line(format_json(params, indent=None), 80) for pk, params in rows}
    return {job_id: lines.get(job_id, _("params too long to show")) for job_id in job_ids}
