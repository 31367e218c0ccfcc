"""Find the job that has a unique key, for a submission whose key is taken.

A waiting job is locked, so that it starts after the transaction that got it: it sees what that has written. The lock is
shared, but for a replacement: submissions of the same key do not wait for each other. SQLite has no row locks, and one
writer: the insert that failed before has the lock.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from jobs import db
from jobs.db import to_uuid
from jobs.engine.job_spec import JobSpec
from jobs.states import OnConflict, UniqueUntil


class Holder(NamedTuple):
    """The job that has a unique key. `is_waiting`: it was never dispatched, and is locked."""

    id: UUID
    job_type: str
    addon_id: str
    remote: bool
    is_waiting: bool

    def does_same_work(self, spec: JobSpec) -> bool:
        """Return whether it has the handler and the workers of the spec, which may get params that are secret."""
        return (self.job_type, self.addon_id, self.remote) == (spec.job_type, spec.addon_id, spec.remote)


def find_holder(connection: Any, spec: JobSpec) -> Holder | None:
    """Return the job with the spec's unique key, and lock it if it waits; None if there is none any more.

    One that runs is not locked: a heartbeat must not wait.
    """
    lock = "" if db.is_sqlite(connection) else "NO KEY UPDATE" if spec.on_conflict == OnConflict.REPLACE else "SHARE"
    is_start = spec.unique_until == UniqueUntil.START
    waiting = _WAITING_START if is_start else _WAITING_END
    holder = _find(connection, f"{waiting} FOR {lock}" if lock else waiting, spec, is_waiting=True)
    return holder if holder or is_start else _find(connection, _LIVE_END, spec, is_waiting=False)


def _find(connection: Any, statement: str, spec: JobSpec, *, is_waiting: bool) -> Holder | None:
    with connection.cursor() as cursor:
        cursor.execute(statement, [spec.tenant, spec.unique_key])
        row = cursor.fetchone()
    return None if row is None else Holder(to_uuid(row[0]), row[1], row[2], bool(row[3]), is_waiting)


# The conditions repeat those of the partial indexes.
_LIVE = "('DISPATCHING', 'PAUSED', 'PENDING', 'QUEUED', 'RUNNING')"
_WAITING_START = f"""
    SELECT id, job_type, addon_id, remote FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'start' AND dispatched_at IS NULL AND status IN {_LIVE}
"""
_WAITING_END = f"""
    SELECT id, job_type, addon_id, remote FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'end' AND dispatched_at IS NULL AND status IN {_LIVE}
"""
_LIVE_END = f"""
    SELECT id, job_type, addon_id, remote FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'end' AND status IN {_LIVE}
"""
