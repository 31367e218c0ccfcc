"""What a due schedule is about to do: which due times it fires, the jobs that they make, and where it goes next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from jobs import shapes
from jobs.engine.job_spec import JobSpec
from jobs.models import Job
from jobs.states import TERMINAL
from schedules import sql
from schedules.catchup import Choice, choose
from schedules.lineage import tails
from schedules.making import build_job
from schedules.models import Overlap, Schedule
from schedules.triggers import trigger_of


@dataclass
class Fire:
    """One due time of one schedule, and the job that it makes. `skip` says why that one is not to run."""

    schedule: Schedule
    due: datetime
    spec: JobSpec
    note: str = ""
    skip: str = ""

    @property
    def job_id(self) -> UUID:
        return self.spec.id


@dataclass
class Plan:
    schedule: Schedule
    choice: Choice
    fires: list[Fire]

    def keep(self, new: Collection[UUID]) -> None:
        """Forget the due times that were fired before."""
        self.fires = [fire for fire in self.fires if fire.job_id in new]

    def advance(self) -> sql.Advance:
        assert self.schedule.next_fire_at is not None
        started = [fire.job_id for fire in self.fires if not fire.skip]
        return sql.Advance(
            next_fire_at=self.choice.next_at,
            last_fire_at=self.fires[-1].due if self.fires else None,
            last_job_id=started[-1] if started else None,
            fires=len(self.fires),
            note=missed(self.schedule, self.choice) or None,
            schedule_id=self.schedule.pk,
            seen=self.schedule.next_fire_at,
        )


def plan(schedule: Schedule, now: datetime) -> Plan:
    """Asks the database nothing. Whatever it raises is wrong with this one row."""
    assert schedule.next_fire_at is not None
    left = None if schedule.max_fires is None else max(schedule.max_fires - schedule.fire_count, 0)
    choice = choose(
        trigger_of(schedule),
        schedule.next_fire_at.astimezone(UTC),
        now,
        catch_up=schedule.catch_up,
        most=schedule.catch_up_max,
        grace_sec=schedule.misfire_grace_sec,
        left=left,
    )
    fires = [Fire(schedule, due, build_job(schedule, due)) for due in choice.fired]
    if fires:
        fires[0].note = missed(schedule, choice)
    return Plan(schedule, choice, fires)


def skip_overlaps(plans: Sequence[Plan]) -> None:
    """Of a schedule whose fires must not overlap only one may be live: its last one, or the first of these."""
    strict = [each for each in plans if each.fires and each.schedule.overlap == Overlap.SKIP]
    last = tails(each.schedule.last_job_id for each in strict if each.schedule.last_job_id) if strict else {}
    for each in strict:
        before = last.get(each.schedule.last_job_id) if each.schedule.last_job_id else None
        busy = None if before is None or before.status in TERMINAL else before
        for fire in each.fires:
            if busy is None:
                busy = Job(id=fire.job_id, status=fire.spec.status)
            else:
                fire.skip = f"overlap: job {busy.pk} of an earlier fire is {busy.status}"
                fire.note = fire.note or fire.skip


def missed(schedule: Schedule, choice: Choice) -> str:
    if choice.missed_since is None:
        return ""
    since = shapes.moment(choice.missed_since)
    until = shapes.moment(choice.fired[0]) if choice.fired else "now"
    return f"missed: due times from {since} until {until} were not fired (catch-up {schedule.catch_up})"
