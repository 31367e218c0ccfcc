"""Gather the facts that decide whether an action can be applied to a job (`states.refusal`).

One job and many jobs take two queries at most: one for retry chains, one for groups. Under the locks that
`transitions.lock_job` takes, the facts stay true until the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Max, Min, Q

from jobs import db
from jobs.engine.sql import to_datetime
from jobs.models import Gate, GroupMode, Job
from jobs.models.expressions import SqlLiteral, sql_literals
from jobs.states import LIVE, TERMINAL, JobFacts, LatestAttempt, Status, StopMode, UniqueUntil

FACT_COLUMNS = (
    *("status", "cancel_requested", "cancel_mode", "dispatched_at", "resolved_at", "retry_of_id", "gate", "not_before"),
    *("group_id", "group_index", "tenant", "unique_key", "unique_until"),
)  # the columns of a job that its facts need


def gather_facts(job: Job) -> JobFacts:
    """Return the facts of one job that was read just now."""
    return gather_facts_by_id([job])[job.pk]


def gather_facts_by_id(jobs: Sequence[Job]) -> dict[UUID, JobFacts]:
    """Return the facts of jobs that were read just now, by job id. Only a finished job can be superseded."""
    latest = find_latest_attempts([job.pk for job in jobs if job.status in TERMINAL])
    key_holders = _find_key_holders([job for job in jobs if job.status in TERMINAL])
    blocked = find_blocked_members([job for job in jobs if job.status == Status.PENDING])
    return {
        job.pk: JobFacts(
            job_id=job.pk,
            status=Status(job.status),
            stop_mode=StopMode(job.cancel_mode) if job.cancel_requested else None,
            is_dispatched=job.dispatched_at is not None,
            is_resolved=job.resolved_at is not None,
            is_retry=job.retry_of_id is not None,
            in_backoff=job.retry_of_id is not None and _is_scheduled(job.gate, job.not_before),
            waits_in_group=job.pk in blocked,
            superseded_by=latest.get(job.pk),
            retry_key=_get_retry_key(job),
            key_holder_id=key_holders.get(job.pk),
        )
        for job in jobs
    }


def _get_retry_key(job: Job) -> tuple[str, str] | None:
    """Return the tenant and the unique key that a retry of the job carries; None if it carries none."""
    return None if job.unique_key is None or job.unique_until != UniqueUntil.END else (job.tenant, job.unique_key)


def _find_key_holders(jobs: Iterable[Job]) -> dict[UUID, UUID]:
    """Return the live job with the same unique key, by job id, for each job whose retry would carry that key."""
    keys = {job.pk: key for job in jobs if (key := _get_retry_key(job)) is not None}
    if not keys:
        return {}
    is_end = Q(unique_until=SqlLiteral(str(UniqueUntil.END)), status__in=sql_literals(sorted(LIVE)))
    live = Job.objects.filter(is_end, tenant__in={tenant for tenant, _key in keys.values()})
    rows = live.filter(unique_key__in={key for _tenant, key in keys.values()}).order_by()
    holders = {(tenant, key): pk for tenant, key, pk in rows.values_list("tenant", "unique_key", "pk")}
    return {job_id: holders[key] for job_id, key in keys.items() if key in holders}


def find_latest_attempts(job_ids: Collection[UUID]) -> dict[UUID, LatestAttempt]:
    """Return the latest attempt of the retry chain, by job id, for each job that is not the latest itself."""
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


# UNION, not UNION ALL: a cycle, which only raw SQL can have made, ends too. The statement fits both databases.
LATEST_ATTEMPTS = """
    WITH RECURSIVE chain (first_id, id) AS (
        SELECT retry_of_id, id FROM jobscheduler_job WHERE retry_of_id IN ({ids})
        UNION
        SELECT chain.first_id, newer.id FROM chain JOIN jobscheduler_job newer ON newer.retry_of_id = chain.id
    )
    SELECT chain.first_id, job.id, job.status, job.gate, job.not_before
    FROM chain JOIN jobscheduler_job job ON job.id = chain.id
    WHERE NOT EXISTS (SELECT 1 FROM jobscheduler_job newer WHERE newer.retry_of_id = chain.id)
"""


def find_first_attempt(job_id: UUID) -> UUID:
    """Return the first job of the retry chain of a job."""
    connection = db.connection()
    with connection.cursor() as cursor:
        cursor.execute(FIRST_ATTEMPT, [Job._meta.pk.get_db_prep_value(job_id, connection)])
        row = cursor.fetchone()
    return job_id if row is None else UUID(str(row[0]))


FIRST_ATTEMPT = """
    WITH RECURSIVE chain (id, retry_of_id) AS (
        SELECT id, retry_of_id FROM jobscheduler_job WHERE id = %s
        UNION
        SELECT older.id, older.retry_of_id FROM chain JOIN jobscheduler_job older ON older.id = chain.retry_of_id
    )
    SELECT id FROM chain WHERE retry_of_id IS NULL
"""


class ChainHistory(NamedTuple):
    """A retry chain up to one of its jobs: when it was submitted, and how many runs it has started."""

    created_at: datetime
    runs: int


def read_chain_histories(job_ids: Collection[UUID]) -> dict[UUID, ChainHistory]:
    """Return the retry chain of each job up to that job."""
    if not job_ids:
        return {}
    connection = db.connection()
    keys = [Job._meta.pk.get_db_prep_value(job_id, connection) for job_id in job_ids]
    with connection.cursor() as cursor:
        cursor.execute(CHAIN_HISTORIES.format(ids=", ".join(["%s"] * len(keys))), keys)
        return {UUID(str(row[0])): ChainHistory(to_datetime(row[1]), row[2]) for row in cursor.fetchall()}


# A subquery for each job: for many at once, the planner expects long chains and reads all jobs.
_CHAIN = """WITH RECURSIVE chain (id, retry_of_id, created_at) AS (
        SELECT job.id, job.retry_of_id, job.created_at
        UNION
        SELECT older.id, older.retry_of_id, older.created_at
        FROM chain JOIN jobscheduler_job older ON older.id = chain.retry_of_id
    )"""
CHAIN_HISTORIES = f"""
    SELECT job.id,
           ({_CHAIN} SELECT min(chain.created_at) FROM chain),
           ({_CHAIN} SELECT count(*) FROM chain JOIN jobscheduler_jobrun run ON run.job_id = chain.id)
    FROM jobscheduler_job job WHERE job.id IN ({{ids}})
"""  # noqa: S608 — constants only


def find_blocked_members(members: Iterable[Job]) -> set[UUID]:
    """Return the ids of members that cannot start.

    A sequential group has one active member at a time, in order; the final job of a parallel group waits for all other
    members. None of them can start while an action on the group is in progress: it may be about to end them.
    """
    members = [job for job in members if job.group_id is not None]
    if not members:
        return set()
    waits = Q(group__mode=GroupMode.SEQUENTIAL) | Q(group__then_index__in={job.group_index for job in members})
    siblings = Job.objects.filter(waits, group_id__in={job.group_id for job in members})
    live = siblings.filter(status__in=sql_literals(sorted(LIVE))).order_by()
    is_active = ~Q(status=Status.PENDING)
    rows = {
        row["group_id"]: row
        for row in live.values("group_id", "group__mode", "group__then_index").annotate(
            first=Min("group_index"),
            first_active=Min("group_index", filter=is_active),
            last_active=Max("group_index", filter=is_active),
            action=Max("group__actions"),
        )
    }
    return {job.pk for job in members if job.group_id in rows and _is_blocked(job.group_index, rows[job.group_id])}


def _is_blocked(index: int | None, row: dict[str, Any]) -> bool:
    """Return whether another member is active, an earlier one is not finished, or an action changes the group."""
    if row["group__mode"] != GroupMode.SEQUENTIAL and index != row["group__then_index"]:
        return False
    if row["action"] is not None:
        return True
    has_active_sibling = row["first_active"] is not None and {row["first_active"], row["last_active"]} != {index}
    return has_active_sibling or (index is not None and row["first"] < index)


def _is_scheduled(gate: int, not_before: object) -> bool:
    """Return whether a job waits for its own start time; a denied or withdrawn one waits for its next check."""
    return gate == Gate.TIME and not_before is not None
