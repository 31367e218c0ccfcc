"""Plan the fires of a schedule: which due times are fired, with which jobs, and which jobs must be skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobs.models import Job
from jobs.services import job_spec
from jobs.services.job_spec import JobSpec
from jobs.services.jobs import read_latest_attempts
from jobs.states import OVERLAP_REASON, TERMINAL
from jobs.time_text import format_time
from schedules.models import Overlap, Schedule
from schedules.triggers import choose_due_times


@dataclass
class PlannedFire:
    """One due time of one schedule, and the job to insert. `skip` is the reason why that job must not run."""

    schedule: Schedule
    due: datetime
    spec: JobSpec
    note: str = ""
    skip: str = ""


@dataclass
class FirePlan:
    """Fires of one schedule, and its next due time. `missed` names the due times that are not fired,
    `missed_at` is when that was found."""

    schedule: Schedule
    fires: list[PlannedFire]
    next_at: datetime | None
    missed: str
    missed_at: datetime | None = None


def plan_fires(schedule: Schedule, now: datetime) -> FirePlan:
    """Plan without the database. Any exception is an error of this one row."""
    due_times = choose_due_times(schedule, now)
    missed = ""
    if due_times.missed_since is not None:
        since = format_time(due_times.missed_since)
        until = format_time(due_times.to_fire[0]) if due_times.to_fire else "now"
        missed = f"missed: runs due from {since} until {until} were left out (missed runs: {schedule.catch_up})"
    fires = [PlannedFire(schedule, due, build_spec(schedule, due)) for due in due_times.to_fire]
    if fires:
        fires[0].note = missed
    return FirePlan(schedule, fires, due_times.next_at, missed, missed_at=now if missed else None)


def build_event_data(schedule: Schedule) -> dict[str, Any]:
    """Return the data of the SUBMITTED event of its jobs: it names the schedule, also after its deletion."""
    return {"schedule": {"id": str(schedule.pk), "name": schedule.name}}


def skip_overlaps(plans: Sequence[FirePlan]) -> None:
    """Mark fires to be skipped: a schedule with overlap `skip` may have one live job, of its last fire or of these."""
    exclusive = [plan for plan in plans if plan.fires and plan.schedule.overlap == Overlap.SKIP]
    last_job_ids = {plan.schedule.last_job_id for plan in exclusive if plan.schedule.last_job_id}
    latest = read_latest_attempts(last_job_ids)
    for plan in exclusive:
        previous = latest.get(plan.schedule.last_job_id) if plan.schedule.last_job_id else None
        live = None if previous is None or previous.status in TERMINAL else previous
        for fire in plan.fires:
            if live is None:
                live = Job(id=fire.spec.id, status=fire.spec.status)
            else:
                fire.skip = f"{OVERLAP_REASON} {str(live.status).lower()}: job {live.pk}"
                fire.note = fire.note or fire.skip


def build_spec(schedule: Schedule, due: datetime, *, is_fire: bool = True) -> JobSpec:
    """Return the job to insert, or raise InvalidInput. A job that an operator triggers has no fire time, no jitter."""
    fire_time = {schedule.fire_time_param: format_time(due)} if schedule.fire_time_param else None
    delay = compute_jitter(schedule.pk, due, schedule.jitter_sec) if is_fire and schedule.jitter_sec else None
    fields = {
        "tenant": schedule.tenant,
        "priority": schedule.priority,
        "target": schedule.target,
        "resource": schedule.resource or None,
        "not_before": None if delay is None else due + delay,
    }
    return job_spec.SpecBuilder(
        schedule.job_type or None,
        fields,
        template=schedule.template,
        schedule_id=schedule.pk,
        fire_time=due if is_fire else None,
    ).build(schedule.params, computed=fire_time)


def compute_jitter(schedule_id: UUID, due: datetime, max_sec: int) -> timedelta:
    """Return a delay of 0 to `max_sec` seconds, the same in every process for the same due time."""
    digest = hashlib.sha256(f"{schedule_id} {format_time(due)}".encode()).digest()
    return timedelta(seconds=round(max_sec * int.from_bytes(digest[:6]) / 2**48, 3))
