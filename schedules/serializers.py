"""Schedules and their fires as JSON documents, for the API and the commands. Secrets are masked; times are UTC."""

from __future__ import annotations

from typing import Any

from jobs.redaction import redact
from jobs.serializers import moment
from schedules.history import PastFire, Upcoming
from schedules.models import Schedule

PLAIN = (
    *("tenant", "name", "cron", "every_sec", "timezone", "max_fires", "enabled", "disabled_reason", "priority"),
    *("target", "catch_up", "catch_up_max", "overlap", "misfire_grace_sec", "jitter_sec", "fire_count", "note"),
    *("source", "edited"),
)
OR_NULL = ("job_type", "fire_time_param", "resource")
TIMES = ("anchor_at", "run_at", "next_fire_at", "last_fire_at", "created_at")


def schedule(row: Schedule) -> dict[str, Any]:
    """Read with `select_related("template")`, or this asks for it."""
    return {
        "id": str(row.pk),
        **{name: getattr(row, name) for name in PLAIN},
        **{name: getattr(row, name) or None for name in OR_NULL},
        **{name: moment(getattr(row, name)) for name in TIMES},
        "template": None if row.template is None else row.template.name,
        "params": redact(row.params),
    }


def fire(past: PastFire) -> dict[str, Any]:
    row, last = past.fire, past.last
    return {
        "id": row.pk,
        "schedule_id": str(row.schedule_id),
        "fire_time": moment(row.fire_time),
        "fired_at": moment(row.fired_at),
        "job_id": None if row.job_id is None else str(row.job_id),
        "outcome": past.outcome,
        "last_job_id": None if last is None else str(last.pk),
        "note": row.note,
    }


def upcoming(due: Upcoming) -> dict[str, Any]:
    return {"fire_at": moment(due.fire_at), "local": due.local.isoformat(), "note": due.note}
