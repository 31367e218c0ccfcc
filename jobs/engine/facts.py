"""What decides whether an action may be applied to a job (`states.refusal`), gathered for one job or for many.

For many as for one it takes two queries at most: one for retry chains, one for groups. Under a job's lock (see
`moves.lock`) the facts stay true until the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from uuid import UUID

from django.db.models import Max, Min, Q

from jobs import db
from jobs.engine.sql.chains import LATEST_ATTEMPTS
from jobs.models import Gate, GroupMode, Job
from jobs.models.expressions import sql_literals
from jobs.states import LIVE, TERMINAL, JobFacts, LatestAttempt, Status, StopMode

FACT_COLUMNS = (
    *("status", "cancel_requested", "cancel_mode", "dispatched_at", "resolved_at", "retry_of_id", "gate", "not_before"),
    *("group_id", "group_index"),
)  # what the facts of a job are read from


def gather_facts(job: Job) -> JobFacts:
    return gather_facts_by_id([job])[job.pk]


def gather_facts_by_id(jobs: Sequence[Job]) -> dict[UUID, JobFacts]:
    """Gather the facts of jobs that were read just now. Only what has ended can be superseded."""
    latest = find_latest_attempts([job.pk for job in jobs if job.status in TERMINAL])
    waiting = find_blocked_members([job for job in jobs if job.status == Status.PENDING])
    return {
        job.pk: JobFacts(
            job_id=job.pk,
            status=Status(job.status),
            stop_mode=StopMode(job.cancel_mode) if job.cancel_requested else None,
            is_dispatched=job.dispatched_at is not None,
            is_resolved=job.resolved_at is not None,
            is_retry=job.retry_of_id is not None,
            in_backoff=job.retry_of_id is not None and _is_scheduled(job.gate, job.not_before),
            waits_in_group=job.pk in waiting,
            superseded_by=latest.get(job.pk),
        )
        for job in jobs
    }


def find_latest_attempts(job_ids: Collection[UUID]) -> dict[UUID, LatestAttempt]:
    """Find the end of each job's retry chain; a job that is the end itself is left out."""
    if not job_ids:
        return {}
    connection = db.connection()
    keys = [Job._meta.pk.get_db_prep_value(job_id, connection) for job_id in job_ids]
    with connection.cursor() as cursor:
        cursor.execute(LATEST_ATTEMPTS.format(ids=", ".join(["%s"] * len(keys))), keys)
        rows = cursor.fetchall()
    return {
        UUID(str(job_id)): LatestAttempt(UUID(str(latest)), Status(status), _is_scheduled(gate, not_before))
        for job_id, latest, status, gate, not_before in rows
    }


def find_blocked_members(members: Iterable[Job]) -> set[UUID]:
    """Find the members that must wait: the places of a sequential group take turns, whatever was retried."""
    members = [job for job in members if job.group_id is not None]
    if not members:
        return set()
    sequential = Job.objects.filter(group_id__in={job.group_id for job in members}, group__mode=GroupMode.SEQUENTIAL)
    live = sequential.filter(status__in=sql_literals(sorted(LIVE))).order_by().values("group_id")
    is_active = ~Q(status=Status.PENDING)
    places = {
        row["group_id"]: (row["first"], row["first_active"], row["last_active"])
        for row in live.annotate(
            first=Min("group_index"),
            first_active=Min("group_index", filter=is_active),
            last_active=Max("group_index", filter=is_active),
        )
    }
    return {job.pk for job in members if job.group_id in places and _is_blocked(job.group_index, *places[job.group_id])}


def _is_blocked(place: int | None, first: int, first_active: int | None, last_active: int | None) -> bool:
    """Another place is active, or an earlier one has not ended."""
    has_active_sibling = first_active is not None and {first_active, last_active} != {place}
    return has_active_sibling or (place is not None and first < place)


def _is_scheduled(gate: int, not_before: object) -> bool:
    return gate == Gate.TIME and not_before is not None
