"""Lock the limits, then count the active jobs and direct calls.

Two statements: in one, the count would use a snapshot older than the lock, and limits would be exceeded. Where a rate
is in force, the clock and the used tokens are read by further ones, also after the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django.utils import timezone

from jobs import db
from jobs.db import NOW, Statement, execute_together, to_uuid
from jobs.engine.sql import to_datetime
from jobs.states import CRASH_RECOVERY_REASON, LEASE_EXPIRED_REASON

IN_FORCE = "max IS NOT NULL OR paused OR rate <> '' OR token_rate <> ''"
_SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


class LimitRow(NamedTuple):
    """A limit as its row has it. The levels are those of `bucket_at`."""

    id: int
    scope: str
    key: str
    max: int | None
    paused: bool
    rate: str
    token_rate: str
    burst: int | None
    rate_level: float | None
    token_level: float | None
    bucket_at: datetime | None


class ActiveRow(NamedTuple):
    """The number of active jobs and direct calls of one flow, or of its direct calls that wait for a slot."""

    tenant: str
    job_type: str
    resource: str
    addon_id: str
    waits: bool
    expired: bool  # the lease of a direct call
    active: int


class SpendRow(NamedTuple):
    """What a job or a direct call has taken from the buckets, and how many tokens it has used since its start.

    `used` is None if it has been deleted; `active` tells whether it can use more; `lost`, that its holder is gone and
    may not have reported all that it used.
    """

    id: UUID
    tenant: str
    job_type: str
    resource: str
    addon_id: str
    reserved: int
    taken: int
    used_before: int
    used: int | None
    active: bool
    lost: bool


class CostRow(NamedTuple):
    """The cost units of one addon that are in use or reserved."""

    addon_id: str
    cost_units: int
    expired: bool


def read_limits(connection: Any, *, all_rows: bool, lock: bool) -> tuple[list[LimitRow], list[ActiveRow]]:
    """Return the limits in force (or all), with `lock` locked, and the active counts, read after the lock."""
    limits = _limits(all_rows, lock and not db.is_sqlite(connection))
    rows, active = run_together(connection, limits, _active(connection.vendor))
    return [_parse_limit(row) for row in rows], [ActiveRow(*row) for row in active]


def count_active(connection: Any) -> list[ActiveRow]:
    """Return the active counts of all flows."""
    (active,) = run_together(connection, _active(connection.vendor))
    return [ActiveRow(*row) for row in active]


def read_clock(connection: Any) -> datetime:
    """Return the database's time now, not that of the statement before, which may have waited for a lock."""
    if db.is_sqlite(connection):
        return timezone.now()
    (((now,),),) = run_together(connection, ("SELECT clock_timestamp()", None))
    assert isinstance(now, datetime)
    return now


def read_spends(connection: Any) -> list[SpendRow]:
    """Return what active jobs and direct calls, and those that ended since the last claim, took and used."""
    (rows,) = run_together(connection, (_SPENDS, None))
    return [SpendRow._make((to_uuid(row[0]), *row[1:-2], bool(row[-2]), bool(row[-1]))) for row in rows]


def read_costs(connection: Any) -> list[CostRow]:
    """Return the cost units in use: active jobs, admission leases, and direct calls, even those that wait."""
    (costs,) = run_together(connection, _costs(connection.vendor))
    return [CostRow(*row) for row in costs]


def run_together(connection: Any, *statements: Statement) -> list[list[Sequence[Any]]]:
    """Run statements in one round trip where the database can."""
    if not db.is_sqlite(connection):
        return execute_together(connection, *statements)
    with connection.cursor() as cursor:
        return [cursor.execute(*statement).fetchall() for statement in statements]


@cache
def _limits(all_rows: bool, lock: bool) -> Statement:
    return (
        f"SELECT {', '.join(LimitRow._fields)} FROM jobscheduler_concurrencylimit"
        + (f" WHERE {IN_FORCE}" if not all_rows else "")
        + " ORDER BY id"
        + (" FOR NO KEY UPDATE" if lock else ""),
        None,
    )


def _parse_limit(row: Sequence[Any]) -> LimitRow:
    limit = LimitRow(*row)
    return limit if limit.bucket_at is None else limit._replace(bucket_at=to_datetime(limit.bucket_at))


# There is one row for each active job under a token rate, and for those that ended since the last claim.
_SPENDS = f"""
    SELECT s.id, s.tenant, s.job_type, s.resource, s.addon_id, s.reserved, s.taken, s.used_before,
           coalesce(j.tokens_used - s.used_before, l.tokens_used),
           coalesce(j.status IN ('DISPATCHING', 'RUNNING'), l.ended_at IS NULL AND l.id IS NOT NULL),
           coalesce(j.status_reason, l.outcome) IN ('{LEASE_EXPIRED_REASON}', '{CRASH_RECOVERY_REASON}')
    FROM jobscheduler_tokenspend s
    LEFT JOIN jobscheduler_job j ON j.id = s.id LEFT JOIN jobscheduler_lease l ON l.id = s.id
"""


@cache
def _active(vendor: str) -> Statement:
    now = NOW if vendor == "postgresql" else _SQLITE_NOW
    sql = f"""
    SELECT tenant, job_type, resource, addon_id, waits, expired, count(*) FROM (
        SELECT tenant, job_type, resource, addon_id, false AS waits, false AS expired FROM jobscheduler_job
        WHERE status IN ('DISPATCHING', 'RUNNING')
        UNION ALL
        SELECT tenant, job_type, resource, addon_id, granted_at IS NULL, expires_at < {now} FROM jobscheduler_lease
        WHERE ended_at IS NULL AND kind = 'DIRECT'
    ) active GROUP BY tenant, job_type, resource, addon_id, waits, expired
    """
    return sql, None


@cache
def _costs(vendor: str) -> Statement:
    now = NOW if vendor == "postgresql" else _SQLITE_NOW
    sql = f"""
    SELECT addon_id, sum(cost_units), expired FROM (
        SELECT addon_id, cost_units, false AS expired FROM jobscheduler_job WHERE status IN ('DISPATCHING', 'RUNNING')
        UNION ALL
        SELECT addon_id, cost_units, expires_at < {now} FROM jobscheduler_lease
        WHERE ended_at IS NULL AND (kind = 'DIRECT' OR granted_at IS NOT NULL)
    ) active GROUP BY addon_id, expired
    """
    return sql, None
