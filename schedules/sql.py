"""The two statements that make a fire happen once, for many schedules at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from schedules.models import Schedule, ScheduleFire

AT_ONCE = 500
FIRE = ("schedule", "fire_time", "job", "note")
ADVANCE = ("next_fire_at", "last_fire_at", "last_job_id", "fire_count", "note", "id", "next_fire_at")
_INSERT = "INSERT INTO jobscheduler_schedulefire (schedule_id, fire_time, job_id, note)"
_ONCE = "ON CONFLICT (schedule_id, fire_time) DO NOTHING RETURNING job_id"
_ADVANCE = """
    UPDATE jobscheduler_schedule
    SET next_fire_at = %s, last_fire_at = coalesce(%s, last_fire_at), last_job_id = coalesce(%s, last_job_id),
        fire_count = fire_count + %s, note = coalesce(%s, note)
    WHERE id = %s AND enabled AND next_fire_at = %s"""


class Advance(NamedTuple):
    """Where a schedule goes from `seen`, the due time that it stood at."""

    next_fire_at: datetime | None
    last_fire_at: datetime | None
    last_job_id: UUID | None
    fires: int
    note: str | None
    schedule_id: UUID
    seen: datetime


def insert_fires(connection: Any, fires: Sequence[tuple[UUID, datetime, UUID, str]]) -> set[UUID]:
    """Insert (schedule, due time, job, note). Returns the jobs of those that nobody had fired before."""
    new: set[UUID] = set()
    with connection.cursor() as cursor:
        for start in range(0, len(fires), AT_ONCE):
            batch = fires[start : start + AT_ONCE]
            places = ", ".join([f"({', '.join(['%s'] * len(FIRE))})"] * len(batch))
            values = [
                _stored(connection, ScheduleFire, *pair) for fire in batch for pair in zip(FIRE, fire, strict=True)
            ]
            cursor.execute(f"{_INSERT} VALUES {places} {_ONCE}", values)
            new |= {UUID(str(job_id)) for (job_id,) in cursor.fetchall()}
    return new


def advance(connection: Any, steps: Iterable[Advance]) -> int:
    """Move each schedule on, unless it no longer stands where it was seen. Returns how many moved."""
    rows = [[_stored(connection, Schedule, *pair) for pair in zip(ADVANCE, step, strict=True)] for step in steps]
    with connection.cursor() as cursor:
        cursor.executemany(_ADVANCE, rows)
        return int(cursor.rowcount)


def _stored(connection: Any, model: Any, name: str, value: Any) -> Any:
    return model._meta.get_field(name).get_db_prep_save(value, connection)
