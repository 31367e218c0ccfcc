"""Schedules and their fires as JSON documents, for the API and the commands. Secrets are masked, times are UTC."""

from __future__ import annotations

from typing import Any

from jobs.redaction import redact
from jobs.serializers import mark_truncated, serialize_columns
from jobs.time_text import format_time
from schedules.history import PastFire, UpcomingFire
from schedules.models import Schedule

SCHEDULE_COLUMNS = (
    *("id", "tenant", "name", "cron", "every_sec", "timezone", "max_fires", "enabled", "disabled_reason", "priority"),
    *("target", "catch_up", "catch_up_max", "overlap", "misfire_grace_sec", "jitter_sec", "fire_count", "note"),
    *("source", "edited", "anchor_at", "run_at", "next_fire_at", "last_fire_at", "created_at"),
)
NULLABLE_COLUMNS = ("job_type", "fire_time_param", "resource")
FIRE_COLUMNS = ("id", "schedule_id", "fire_time", "fired_at", "job_id", "note")


def serialize_schedule(row: Schedule) -> dict[str, Any]:
    """Serialize a schedule. A row without `select_related("template")` costs a query."""
    return {
        **serialize_columns(row, SCHEDULE_COLUMNS),
        **{name: getattr(row, name) or None for name in NULLABLE_COLUMNS},
        "template": None if row.template is None else row.template.name,
        "params": redact(row.params),
        **mark_truncated(row),
    }


def serialize_fire(past: PastFire) -> dict[str, Any]:
    last_job_id = None if past.latest_attempt is None else str(past.latest_attempt.pk)
    return {**serialize_columns(past.fire, FIRE_COLUMNS), "outcome": past.outcome, "last_job_id": last_job_id}


def serialize_upcoming(fire: UpcomingFire) -> dict[str, Any]:
    return {"fire_at": format_time(fire.fire_at), "local": fire.local.isoformat(), "note": fire.note}
