"""Formatting for admin pages: stored values as escaped HTML, badges, the status bar, relative times and durations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.utils import timezone
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext, pgettext_lazy

from jobs.admin.base import CappedInt
from jobs.explain.reasons import Reason
from jobs.models import Gate
from jobs.models.job import STATUS_LABELS, Job
from jobs.models.run import JobEvent, describe_actor
from jobs.redaction import redact
from jobs.states import DEFAULT_PAUSE_REASON, TERMINAL, Status
from jobs.time_text import format_age as format_age
from jobs.time_text import format_duration as format_duration
from jobs.time_text import format_estimate as format_estimate
from jobs.time_text import format_exact
from jobs.validation.fields import PRIORITIES

MAX_TEXT_LENGTH = 65_536
# These characters reorder the text around them. In JSON they only occur inside strings, where they can be escaped.
_BIDI_CONTROLS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
PRIORITY_LABELS = {
    PRIORITIES["LOW"]: pgettext_lazy("priority", "Low"),
    PRIORITIES["NORMAL"]: pgettext_lazy("priority", "Normal"),
    PRIORITIES["HIGH"]: pgettext_lazy("priority", "High"),
    PRIORITIES["URGENT"]: pgettext_lazy("priority", "Urgent"),
}
BLOCKED = {"target_blocked", "target_paused"}  # reasons to wait of the tab Blocked
ICONS = {  # beside the label, for readers who do not see the colour; every font has them
    Status.PENDING: "◌",
    Status.QUEUED: "○",
    Status.DISPATCHING: "→",
    Status.RUNNING: "▶",
    Status.PAUSED: "‖",
    Status.COMPLETED: "✓",
    Status.FAILED: "✗",
    Status.SKIPPED: "»",
    Status.CANCELLED: "⊘",
}


def isolate_text(text: str) -> SafeString:
    """Isolate text of any script and direction from the text around it."""
    return format_html("<bdi>{}</bdi>", text)


def format_actor(row: Any) -> str:
    """Return kind and name of the actor of an event or an activity."""
    return describe_actor(row.actor_kind, row.actor_name)


def format_initiator(event: JobEvent) -> str:
    """Return kind and name of the actor of an event; of a stop, of who requested it."""
    actor = event.initiator
    return describe_actor(actor.kind, actor.name)


def name_with_tenant(name: str, tenant: str) -> SafeString:
    """Return a name, marked with its tenant unless that is the default one."""
    if tenant == "default":
        return isolate_text(name)
    return format_html('{} <span class="jc-mark">{}</span>', isolate_text(name), isolate_text(tenant))


def format_attempt(job: Job) -> str:
    """Return "2 of 4"; "5" for one beyond the automatic attempts, which a person made."""
    counts = {"attempt": job.attempt, "attempts": job.max_retries + 1}
    return _("%(attempt)d of %(attempts)d") % counts if job.attempt <= counts["attempts"] else str(job.attempt)


def describe_priority(priority: int) -> str:
    """Return a priority as a word and a number: "Normal (50)"."""
    word = PRIORITY_LABELS.get(priority)
    return str(priority) if word is None else f"{word} ({priority})"


def format_reason(job: Job) -> str:
    """Return the reason of the job's status."""
    # The default reason of a pause mentions an interruption, which is wrong for a job that never started.
    if job.status_reason == DEFAULT_PAUSE_REASON and job.dispatched_at is None:
        return _("paused before it started")
    return job.status_reason


def first_line(text: str, length: int = 80) -> str:
    lines = text[:2000].strip().splitlines()
    return Truncator(lines[0]).chars(length) if lines else ""


def format_first_line(text: str) -> SafeString | None:
    return isolate_text(first_line(text)) if text else None


def text_block(text: str) -> SafeString | None:
    return format_html('<pre class="jc-text">{}</pre>', truncate_text(text)) if text else None


def json_block(value: Any) -> SafeString | None:
    return None if value is None else format_html('<pre class="jc-text">{}</pre>', truncate_text(format_json(value)))


def format_json(value: Any, indent: int | None = 2) -> str:
    """Return readable JSON with masked secrets; in one line with `indent=None`."""
    text = json.dumps(redact(value), indent=indent, ensure_ascii=False)
    return _BIDI_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_bytes_block(data: Any) -> SafeString | None:
    """Return a block for JSON that is stored as bytes. Other bytes cannot be redacted, so only their size is shown."""
    try:
        return json_block(json.loads(bytes(data)))
    except (ValueError, RecursionError):
        size = len(data)
        return format_html("{}", ngettext("%d byte that is not JSON", "%d bytes that are not JSON", size) % size)


def truncate_text(text: str) -> str:
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    note = _("… (the first %(shown)d of %(all)d characters)") % {"shown": MAX_TEXT_LENGTH, "all": len(text)}
    return f"{text[:MAX_TEXT_LENGTH]}\n{note}"


def format_count(number: int) -> str:
    """Return a count with thousands separators, whatever the site's settings are; a capped one ends in "+"."""
    return number_format(int(number), force_grouping=True) + ("+" if isinstance(number, CappedInt) else "")


def format_decimal(number: float) -> str:
    """Return a number with one digit after the decimal sign of the language."""
    return number_format(Decimal(f"{number:.1f}"))


def format_percent(share: float) -> str:
    """Return a share of 1 as percent: "5.6 %"."""
    return f"{format_decimal(100 * share)} %"


def format_whole_percent(share: float) -> str:
    """Return a share of 1 in whole percent: "6 %"."""
    return _("%d %%") % round(share * 100)


def status_badge(status: str, detail: str = "") -> SafeString:
    """Return the badge of a job's status; `detail` is a short text such as "2/4"."""
    known = Status(status)
    return badge(known.lower(), str(STATUS_LABELS[known]), ICONS[known], detail)


def state_badge(job: Job, wait: Reason | None) -> SafeString:
    """Return the badge of a job's status; of a waiting job, what it waits for: `wait` is its first reason."""
    if job.status == Status.QUEUED and job.gate == Gate.TIME:
        return badge("queued", pgettext("state of a job", "Scheduled"), "◷")
    if job.status == Status.PENDING and job.hold:
        return badge("pending", pgettext("state of a job", "Held"), "‖")
    if job.status == Status.QUEUED and wait is not None and wait.code == "no_worker":
        return badge("warn", pgettext("state of a job", "No worker"), "!")
    if job.status == Status.QUEUED and wait is not None and wait.code == "scope_paused":
        return badge("warn", pgettext("state of a job", "Limit paused"), "‖")
    if job.status == Status.QUEUED and wait is not None and wait.code in BLOCKED:
        return badge("warn", pgettext("state of a job", "Blocked"), "⊗")
    if job.status == Status.QUEUED:
        return badge("queued", pgettext("state of a job", "Waiting"), ICONS[Status.QUEUED])
    return status_badge(job.status)


def badge(kind: str, label: str, icon: str, detail: str = "") -> SafeString:
    """Return an icon, a label and a colour. `kind` is the colour: a status in lower case, or good, warn, bad, plain."""
    text = f"{capfirst(label)} {detail}" if detail else capfirst(label)
    return format_html('<span class="jc-badge jc-{}"><span aria-hidden="true">{}</span> {}</span>', kind, icon, text)


def format_relative_time(moment: datetime | None, now: datetime | None = None) -> SafeString | None:
    """Return "3 s ago" or "in 2 min", with the exact time as its title."""
    return None if moment is None else _time_element(moment, format_age((now or timezone.now()) - moment))


def format_exact_time(moment: datetime | None) -> SafeString | None:
    """Return "09:06:01.703" for logs and timelines, on another day with the date; the title has the zone as well."""
    if moment is None:
        return None
    is_today = timezone.localtime(moment).date() == timezone.localdate()
    return _time_element(moment, format_exact(moment, with_zone=False, with_date=not is_today))


def _time_element(moment: datetime, text: str) -> SafeString:
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(timespec="milliseconds"),
        format_exact(moment),
        text,
    )


BAR_WIDTH, BAR_HEIGHT = 200, 10
BAR_ORDER = (
    *(Status.COMPLETED, Status.SKIPPED, Status.CANCELLED, Status.FAILED, Status.RUNNING),
    *(Status.DISPATCHING, Status.PAUSED, Status.QUEUED, Status.PENDING),
)
BAR_CLASSES = {Status.COMPLETED: "completed", Status.FAILED: "failed", Status.RUNNING: "running"}
BAR_SVG = (
    '<svg class="jc-spark jc-share" viewBox="0 0 {} {}" role="img" aria-label="{}" preserveAspectRatio="none">{}</svg>'
)
BAR_PART = '<rect class="jc-run-{}" x="{}" y="0" width="{}" height="{}"><title>{}</title></rect>'


def status_bar(by_status: Mapping[str, int]) -> SafeString | None:
    """Return a bar of jobs by status with the same numbers as text; None if there are no jobs."""
    counts = {status: by_status[status] for status in BAR_ORDER if by_status.get(status)}
    total = sum(counts.values())
    if not total:
        return None
    ended = sum(count for status, count in counts.items() if status in TERMINAL)
    summary = _("%(ended)d of %(total)d finished") % {"ended": ended, "total": total}
    x, parts = 0.0, []
    for status, count in counts.items():
        width = BAR_WIDTH * count / total
        title = f"{STATUS_LABELS[status]}: {count}"
        parts.append((BAR_CLASSES.get(status, "other"), f"{x:.2f}", f"{width:.2f}", BAR_HEIGHT, title))
        x += width
    bar = format_html(BAR_SVG, BAR_WIDTH, BAR_HEIGHT, summary, format_html_join("", BAR_PART, parts))
    labels = [(ICONS[status], count, STATUS_LABELS[status]) for status, count in counts.items()]
    details = format_html_join(", ", "{} {} {}", labels)
    return format_html('{}<span class="jc-small">{} · {}</span>', bar, summary, details)
