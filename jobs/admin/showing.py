"""Stored values as inert HTML: whatever a text contains, it stays text, in its own place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.contrib.admin import ModelAdmin, display
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.urls import reverse
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin.paginator import CappedInt
from jobs.engine.lifecycle import PAUSED_BY_DEFAULT
from jobs.redaction import redact

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.utils.safestring import SafeString

    from jobs.models import Job

LONGEST = 65_536
# They reorder what stands around them; in JSON they can be spelled out, since they are only ever inside strings.
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def shown(description: Any, ordering: str | None = None) -> Callable[[Callable[[Any, Any], Any]], Any]:
    """A column or read-only field made by a method. None is shown as any empty value is, on pages as in lists."""

    def decorate(method: Callable[[Any, Any], Any]) -> Any:
        @wraps(method)
        def show(self: ModelAdmin, row: Model) -> Any:
            value = method(self, row)
            return self.get_empty_value_display() if value is None else value

        return display(description=description, ordering=ordering)(show)

    return decorate


def change_url(site: AdminSite, model: type[Model], pk: Any) -> str:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return reverse(name, args=[quote(pk)], current_app=site.name)


def list_url(site: AdminSite, model: type[Model]) -> str:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"
    return reverse(name, current_app=site.name)


def link(site: AdminSite, model: type[Model], pk: Any, text: str = "") -> SafeString | str | None:
    """A link to a row's page, or only its name where the site does not show that model."""
    if pk is None:
        return None
    if not site.is_registered(model):
        return isolated(text or str(pk))
    return format_html('<a href="{}"><bdi>{}</bdi></a>', change_url(site, model, pk), text or str(pk))


def isolated(text: str) -> SafeString:
    """Text that may be in any script and direction, beside other text."""
    return format_html("<bdi>{}</bdi>", text)


def reason_of(job: Job) -> str:
    """Why it is in its state. What nobody had begun was not interrupted, whatever the words of a bare pause are."""
    if job.status_reason == PAUSED_BY_DEFAULT and job.dispatched_at is None:
        return _("paused before it started")
    return job.status_reason


def first_line(text: str, length: int = 80) -> str:
    lines = text[:2000].strip().splitlines()
    return Truncator(lines[0]).chars(length) if lines else ""


def text_block(text: str) -> SafeString | None:
    return format_html('<pre class="jc-text">{}</pre>', shortened(text)) if text else None


def json_block(value: Any) -> SafeString | None:
    return None if value is None else format_html('<pre class="jc-text">{}</pre>', shortened(pretty(value)))


def pretty(value: Any) -> str:
    """JSON to read, with its secrets masked."""
    return _spelled(json.dumps(redact(value), indent=2, ensure_ascii=False))


def one_line(value: Any) -> str:
    """JSON in one line, with its secrets masked."""
    return _spelled(json.dumps(redact(value), ensure_ascii=False))


def short_id(pk: Any) -> str:
    """The end of an id, which differs even among those that were made at the same time."""
    return f"…{str(pk)[-12:]}"


def json_text(data: Any) -> SafeString | None:
    """JSON that is stored as bytes. What cannot be read cannot be redacted, and is not shown."""
    try:
        return json_block(json.loads(bytes(data)))
    except (ValueError, RecursionError):
        size = len(data)
        return format_html("{}", ngettext("%d byte that is not JSON", "%d bytes that are not JSON", size) % size)


def shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    note = _("… (the first %(shown)d of %(all)d characters)") % {"shown": LONGEST, "all": len(text)}
    return f"{text[:LONGEST]}\n{note}"


def duration(span: timedelta) -> str:
    seconds = span.total_seconds()
    if 0 < seconds < 1:
        return _("%d ms") % max(round(seconds * 1000), 1)
    if seconds < 60:
        return _("%s s") % f"{seconds:.3g}"
    return str(timedelta(seconds=int(seconds)))


def grouped(number: int) -> str:
    """With its thousands apart, whatever the site does with other numbers; a count that was broken off says so."""
    return number_format(int(number), force_grouping=True) + ("+" if isinstance(number, CappedInt) else "")


def _spelled(written: str) -> str:
    return _DIRECTION.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
