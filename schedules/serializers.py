"""Schedules and their fires as JSON documents, for the API and the commands. Secrets are masked, times are UTC."""

from __future__ import annotations

from typing import Any

from jobs.redaction import redact
from jobs.serializers import format_time
from schedules.history import PastFire, UpcomingFire
from schedules.models import Schedule

PLAIN_FIELDS = (
    *("tenant", "name", "cron", "every_sec", "timezone", "max_fires", "enabled", "disabled_reason", "priority"),
    *("target", "catch_up", "catch_up_max", "overlap", "misfire_grace_sec", "jitter_sec", "fire_count", "note"),
    *("source", "edited"),
)
NULLABLE_FIELDS = ("job_type", "fire_time_param", "resource")
TIME_FIELDS = ("anchor_at", "run_at", "next_fire_at", "last_fire_at", "created_at")


def serialize_schedule(row: Schedule) -> dict[str, Any]:
    """Serialize a schedule. A row without `select_related("template")` costs a query."""
    return {
        "id": str(row.pk),
        **{name: getattr(row, name) for name in PLAIN_FIELDS},
        **{name: getattr(row, name) or None for name in NULLABLE_FIELDS},
        **{name: format_time(getattr(row, name)) for name in TIME_FIELDS},
        "template": None if row.template is None else row.template.name,
        "params": redact(row.params),
    }


def serialize_fire(past: PastFire) -> dict[str, Any]:
    row, latest = past.fire, past.latest_attempt
    return {
        "id": row.pk,
        "schedule_id": str(row.schedule_id),
        "fire_time": format_time(row.fire_time),
        "fired_at": format_time(row.fired_at),
        "job_id": None if row.job_id is None else str(row.job_id),
        "outcome": past.outcome,
        "last_job_id": None if latest is None else str(latest.pk),
        "note": row.note,
    }


def serialize_upcoming(fire: UpcomingFire) -> dict[str, Any]:
    return {"fire_at": format_time(fire.fire_at), "local": fire.local.isoformat(), "note": fire.note}
