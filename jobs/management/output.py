"""Jobs as text for a terminal: one line each, or all there is to know about one."""

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
from jobs.validation.sanitize import escape_unprintable

HEADINGS = ("ID", "STATUS", "TYPE", "TARGET", "AGE", "NOTE")
EVENTS, LINES = 50, 20


def row(job: Job, now: datetime) -> tuple[str, ...]:
    age = base.age((now - job.created_at).total_seconds())
    return (str(job.pk), job.status, job.job_type, job.target or "", age, note(job))


def note(job: Job) -> str:
    """The one thing to know about a job besides its state."""
    if job.cancel_requested:
        return f"{job.cancel_mode.lower()} requested"
    if job.progress is not None and not job.is_terminal:
        return f"{job.progress:.0%} {job.progress_message}".strip()
    return (job.status_reason.splitlines() or [""])[0]


def document(job: Job) -> dict[str, Any]:
    """All there is to know: the job, what happened to it, the end of its log."""
    return {
        **serializers.job(job),
        "events": [serializers.event(each) for each in _last(JobEvent, job, EVENTS)],
        "logs": [serializers.log(each) for each in _last(JobLog, job, LINES)],
    }


def explanation(found: Explanation) -> Iterable[str]:
    yield escape_unprintable(found.summary)
    if len(found.reasons) > 1:
        yield from (escape_unprintable(f"  {reason.code}: {reason.message}") for reason in found.reasons)
    if found.ahead:
        yield f"ahead: {found.ahead}"
    if found.predicted_start_at is not None:
        yield f"may start: {serializers.moment(found.predicted_start_at)}"


def page(job: Job) -> Iterable[str]:
    if not job.is_terminal and job.status != Status.RUNNING:
        yield from explanation(explain(job.pk))
    told = document(job)
    events, logs, run = told.pop("events"), told.pop("logs"), told.pop("run")
    yield from _facts({name: value for name, value in told.items() if value not in (None, "", [], {}, False)}, "")
    if run is not None:
        yield "run:"
        yield from _facts({name: run[name] for name in ("status", "started_at", "finished_at", "exit_code")}, "  ")
        yield from _facts({name: run[name] for name in ("worker", "artifacts") if run[name]}, "  ")
        yield from (f"  | {escape_unprintable(line)}" for line in run["error"].splitlines())
    yield "events:"
    for event in events:
        actor = " ".join(filter(None, event["actor"].values()))
        reason = f": {event['reason']}" if event["reason"] else ""
        yield escape_unprintable(f"  {event['at']}  {event['kind']}  by {actor}{reason}")
    if logs:
        yield "logs:"
        yield from (escape_unprintable(f"  {each['at']}  {each['level']:7} {each['message']}") for each in logs)


def _facts(facts: dict[str, Any], indent: str) -> Iterable[str]:
    for name, value in facts.items():
        shown = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        yield f"{indent}{name}: {escape_unprintable(shown)}"


def _last(model: Any, job: Job, most: int) -> list[Any]:
    """The newest rows of a job, oldest first."""
    rows = model.objects.filter(job_id=job.pk).order_by("-id")[:most]
    return list(rows)[::-1]
