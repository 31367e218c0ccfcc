"""Plan the fires of a schedule: which due times make jobs, which jobs, and which of them must be skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from jobs import serializers
from jobs.engine.job_spec import JobSpec
from jobs.models import Job
from jobs.services import job_spec
from jobs.states import TERMINAL
from jobs.validation import fields as parsing
from schedules.models import Overlap, Schedule
from schedules.triggers import choose, trigger_of


@dataclass
class Fire:
    """One due time of one schedule, and the job that it makes. `skip` says why that one is not to run."""

    schedule: Schedule
    due: datetime
    spec: JobSpec
    note: str = ""
    skip: str = ""


@dataclass
class Plan:
    """Fires of one schedule, and its next due time. `missed` says which due times are not fired."""

    schedule: Schedule
    fires: list[Fire]
    next_at: datetime | None
    missed: str


def plan_fires(schedule: Schedule, now: datetime) -> Plan:
    """Plan without the database. Whatever this raises is wrong with this one row."""
    assert schedule.next_fire_at is not None
    choice = choose(
        trigger_of(schedule),
        schedule.next_fire_at.astimezone(UTC),
        now,
        catch_up=schedule.catch_up,
        most=schedule.catch_up_max,
        grace_sec=schedule.misfire_grace_sec,
        left=schedule.fires_left,
    )
    missed = ""
    if choice.missed_since is not None:
        since = serializers.moment(choice.missed_since)
        until = serializers.moment(choice.fired[0]) if choice.fired else "now"
        missed = f"missed: due times from {since} until {until} were not fired (catch-up {schedule.catch_up})"
    fires = [Fire(schedule, due, build_job(schedule, due)) for due in choice.fired]
    if fires:
        fires[0].note = missed
    return Plan(schedule, fires, choice.next_at, missed)


def skip_overlaps(plans: Sequence[Plan]) -> None:
    """Of a schedule whose fires must not overlap only one may be live: its last one, or the first of these."""
    strict = [plan for plan in plans if plan.fires and plan.schedule.overlap == Overlap.SKIP]
    last = tails(plan.schedule.last_job_id for plan in strict if plan.schedule.last_job_id) if strict else {}
    for plan in strict:
        before = last.get(plan.schedule.last_job_id) if plan.schedule.last_job_id else None
        busy = None if before is None or before.status in TERMINAL else before
        for fire in plan.fires:
            if busy is None:
                busy = Job(id=fire.spec.id, status=fire.spec.status)
            else:
                fire.skip = f"overlap: job {busy.pk} of an earlier fire is {busy.status}"
                fire.note = fire.note or fire.skip


def tails(job_ids: Iterable[UUID]) -> dict[UUID, Job]:
    """Each job's chain by its last job; jobs that were pruned are left out."""
    jobs = Job.objects.only("id", "status", "status_reason", "retry_of_id").order_by()
    found = {job.pk: job for job in jobs.filter(pk__in=set(job_ids))}
    newest = {job_id: job_id for job_id in found}  # the last job known of a chain, and the given one
    while newest:
        followers = list(jobs.filter(retry_of_id__in=list(newest)))
        newest = {job.pk: newest[job.retry_of_id] for job in followers if job.retry_of_id is not None}
        found |= {newest[job.pk]: job for job in followers}
    return found


def build_job(schedule: Schedule, due: datetime, *, is_fire: bool = True) -> JobSpec:
    """Build one new job, or raise InvalidInput. A job that a person triggers has no fire time and no jitter."""
    params = parsing.parse_json_object(schedule.params, "params")
    if schedule.fire_time_param:
        params[schedule.fire_time_param] = serializers.moment(due)
    fields = {
        "tenant": schedule.tenant,
        "priority": schedule.priority,
        "target": schedule.target,
        "resource": schedule.resource or None,
        "not_before": due + jitter(schedule.pk, due, schedule.jitter_sec) if is_fire and schedule.jitter_sec else None,
    }
    return job_spec.SpecBuilder(
        schedule.job_type or None,
        fields,
        template=schedule.template,
        schedule_id=schedule.pk,
        fire_time=due if is_fire else None,
    ).build(params)


def jitter(schedule_id: UUID, due: datetime, most_sec: int) -> timedelta:
    """From nothing up to `most_sec`, the same in every process: neighbours are spread, a due time is not moved."""
    digest = hashlib.sha256(f"{schedule_id} {serializers.moment(due)}".encode()).digest()
    return timedelta(seconds=round(most_sec * int.from_bytes(digest[:6]) / 2**48, 3))
