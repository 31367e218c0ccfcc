"""Format jobs for a terminal: one line for each, or all details of one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jobs import serializers
from jobs.explain import Explanation, explain
from jobs.management import base
from jobs.models import Job, JobEvent, JobLog
from jobs.states import Status
from jobs.time_text import format_time
from jobs.validation.sanitize import escape_unprintable

HEADINGS = ("ID", "STATUS", "TYPE", "TARGET", "AGE", "NOTE")
EVENTS_LIMIT, LOG_LINES_LIMIT = 50, 20


def build_row(job: Job, now: datetime) -> tuple[str, ...]:
    age = base.format_age((now - job.created_at).total_seconds())
    return (str(job.pk), job.status, job.job_type, job.target or "", age, summarize_state(job))


def summarize_state(job: Job) -> str:
    """Return the stop request, the progress or the reason, whichever is most important."""
    if job.cancel_requested:
        return f"{job.cancel_mode.lower()} requested"
    if job.progress is not None and not job.is_terminal:
        return f"{job.progress:.0%} {job.progress_message}".strip()
    return (job.status_reason.splitlines() or [""])[0]


def build_document(job: Job) -> dict[str, Any]:
    """Return the job with its last events and log lines."""
    return {
        **serializers.serialize_job(job),
        "events": [serializers.serialize_event(event) for event in _list_last(JobEvent, job, EVENTS_LIMIT)],
        "logs": [serializers.serialize_log(line) for line in _list_last(JobLog, job, LOG_LINES_LIMIT)],
    }


def format_explanation(explanation: Explanation) -> Iterable[str]:
    yield escape_unprintable(explanation.summary)
    if len(explanation.reasons) > 1:
        yield from (escape_unprintable(f"  {reason.code}: {reason.message}") for reason in explanation.reasons)
    if explanation.ahead:
        yield f"ahead: {explanation.ahead}"
    if explanation.predicted_start_at is not None:
        yield f"may start: {format_time(explanation.predicted_start_at)}"


def format_job(job: Job) -> Iterable[str]:
    """Yield the lines of `jobs show`."""
    if not job.is_terminal and job.status != Status.RUNNING:
        yield from format_explanation(explain(job.pk))
    fields = build_document(job)
    events, logs, run = fields.pop("events"), fields.pop("logs"), fields.pop("run")
    fields = {name: value for name, value in fields.items() if value not in (None, "", [], {}, False)}
    yield from _format_fields(fields, "")
    if run is not None:
        yield "run:"
        shown = {name: run[name] for name in ("status", "started_at", "finished_at", "exit_code")}
        yield from _format_fields(shown | {name: run[name] for name in ("worker", "artifacts") if run[name]}, "  ")
        yield from (f"  | {escape_unprintable(line)}" for line in run["error"].splitlines())
    yield "events:"
    for event in events:
        actor = " ".join(filter(None, event["actor"].values()))
        reason = f": {event['reason']}" if event["reason"] else ""
        yield escape_unprintable(f"  {event['at']}  {event['kind']}  by {actor}{reason}")
    if logs:
        yield "logs:"
        yield from (escape_unprintable(f"  {line['at']}  {line['level']:7} {line['message']}") for line in logs)


def _format_fields(fields: dict[str, Any], indent: str) -> Iterable[str]:
    for name, value in fields.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        yield f"{indent}{name}: {escape_unprintable(text)}"


def _list_last(model: Any, job: Job, limit: int) -> list[Any]:
    """Return the newest rows of a job, oldest first."""
    rows = model.objects.filter(job_id=job.pk).order_by("-id")[:limit]
    return list(rows)[::-1]
