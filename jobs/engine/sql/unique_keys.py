"""Find the job that has a unique key, for a submission whose key is taken.

A waiting job is locked, so that it starts after the transaction that got it: it sees what that has written. The lock is
shared, but for a replacement: submissions of the same key do not wait for each other. SQLite has no row locks, and one
writer: the insert that failed before has the lock.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from jobs import db
from jobs.db import to_uuid
from jobs.engine.job_spec import JobSpec
from jobs.states import OnConflict, UniqueUntil


def find_waiting_holder(connection: Any, spec: JobSpec) -> UUID | None:
    """Return the job with the spec's unique key that was never dispatched, and lock it; None if there is none."""
    lock = "" if db.is_sqlite(connection) else "NO KEY UPDATE" if spec.on_conflict == OnConflict.REPLACE else "SHARE"
    statement = _WAITING_START if spec.unique_until == UniqueUntil.START else _WAITING_END
    return _find(connection, f"{statement} FOR {lock}" if lock else statement, spec)


def find_live_holder(connection: Any, spec: JobSpec) -> UUID | None:
    """Return the job with the spec's unique key that has not ended, without a lock: a heartbeat must not wait."""
    return _find(connection, _LIVE_END, spec) if spec.unique_until == UniqueUntil.END else None


def _find(connection: Any, statement: str, spec: JobSpec) -> UUID | None:
    with connection.cursor() as cursor:
        cursor.execute(statement, [spec.tenant, spec.unique_key])
        row = cursor.fetchone()
    return None if row is None else to_uuid(row[0])


# The conditions repeat those of the partial indexes.
_LIVE = "('DISPATCHING', 'PAUSED', 'PENDING', 'QUEUED', 'RUNNING')"
_WAITING_START = f"""
    SELECT id FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'start' AND dispatched_at IS NULL AND status IN {_LIVE}
"""
_WAITING_END = f"""
    SELECT id FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'end' AND dispatched_at IS NULL AND status IN {_LIVE}
"""
_LIVE_END = f"""
    SELECT id FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'end' AND status IN {_LIVE}
"""
