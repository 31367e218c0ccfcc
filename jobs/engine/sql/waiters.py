"""Notify the processes that wait for the end of a job. On SQLite they watch the file for commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobs import db
from jobs.notifications import ENDED_CHANNEL


def notify_waiters(connection: Any, job_ids: Sequence[UUID]) -> None:
    """Send a notification for each of these jobs that a process waits for. They end with the caller's transaction."""
    if db.has_server(connection):
        with connection.cursor() as cursor:
            cursor.execute(_NOTIFY_WAITERS, [db.to_array(job_ids)])


# The statement that finishes jobs does the same.
_NOTIFY_WAITERS = f"""
    SELECT pg_notify('{ENDED_CHANNEL}', job_id::text) FROM jobscheduler_waiter WHERE job_id = ANY(%s::uuid[])
"""
