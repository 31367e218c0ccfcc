"""The job that a schedule makes: what the schedule says now, copied, so that later edits do not touch it (INV-005)."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from uuid import UUID

from jobs import parsing, shapes, submission
from jobs.actors import Actor, ActorKind
from jobs.engine.job_spec import JobSpec
from schedules.models import Schedule

ACTOR = Actor(ActorKind.SCHEDULER, "schedules")


def build_job(schedule: Schedule, due: datetime, *, is_fire: bool = True) -> JobSpec:
    """Build one new job, or raise InvalidInput. A job that a person triggers has no fire time and no jitter."""
    params = parsing.json_object(schedule.params, "params")
    if schedule.fire_time_param:
        params[schedule.fire_time_param] = shapes.moment(due)
    fields = {
        "tenant": schedule.tenant,
        "priority": schedule.priority,
        "target": schedule.target,
        "resource": schedule.resource or None,
        "not_before": due + jitter(schedule.pk, due, schedule.jitter_sec) if is_fire and schedule.jitter_sec else None,
    }
    return submission.SpecBuilder(
        schedule.job_type or None,
        fields,
        template=schedule.template,
        schedule_id=schedule.pk,
        fire_time=due if is_fire else None,
    ).build(params)


def jitter(schedule_id: UUID, due: datetime, most_sec: int) -> timedelta:
    """From nothing up to `most_sec`, the same whoever fires: neighbours are spread, a due time is not moved."""
    digest = hashlib.sha256(f"{schedule_id} {shapes.moment(due)}".encode()).digest()
    return timedelta(seconds=round(most_sec * int.from_bytes(digest[:6]) / 2**48, 3))
