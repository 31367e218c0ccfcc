"""Find the job that has a unique key, for a submission whose key is taken.

A waiting job is locked, so that it starts after the transaction that got it: it sees what that has written. The lock is
shared, but for a replacement: submissions of the same key do not wait for each other.
"""

from __future__ import annotations

from uuid import UUID

from jobs import db
from jobs.db import to_uuid
from jobs.engine.job_spec import JobSpec
from jobs.engine.sql import unique_keys as sql
from jobs.states import OnConflict, UniqueUntil


def find_waiting_holder(spec: JobSpec) -> UUID | None:
    """Return the job with the spec's unique key that was never dispatched, and lock it; None if there is none."""
    is_replaced = spec.on_conflict == OnConflict.REPLACE
    if spec.unique_until == UniqueUntil.START:
        return _find(spec, sql.LOCK_START if is_replaced else sql.SHARE_START)
    return _find(spec, sql.LOCK_END if is_replaced else sql.SHARE_END)


def find_live_holder(spec: JobSpec) -> UUID | None:
    """Return the job with the spec's unique key that has not ended, without a lock: a heartbeat must not wait."""
    return _find(spec, sql.FIND_END) if spec.unique_until == UniqueUntil.END else None


def _find(spec: JobSpec, statement: sql.VendorStatement) -> UUID | None:
    connection = db.connection()
    text = db.pick(connection, postgresql=statement.postgresql, sqlite=statement.sqlite)
    with connection.cursor() as cursor:
        cursor.execute(text, [spec.tenant, spec.unique_key])
        row = cursor.fetchone()
    return None if row is None else to_uuid(row[0])
