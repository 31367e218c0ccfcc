"""Spread the positions of waiting jobs evenly, keeping their order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from jobs import db


def spread_positions(connection: Any, job_ids: Iterable[UUID], *, low: int, step: int) -> None:
    """Give these jobs, which are locked, the positions low + step, low + 2 step, …"""
    with connection.cursor() as cursor:
        if db.is_sqlite(connection):
            cursor.execute(_SQLITE, [low, step, json.dumps([job_id.hex for job_id in job_ids])])
        else:
            cursor.execute(_POSTGRESQL, [low, step, list(job_ids)])


# Only the locked jobs: an update of another one would wait for its lock.
_POSTGRESQL = """
    UPDATE jobscheduler_job SET position = %s + %s * ranked.ordinal
    FROM (
        SELECT id AS ranked_id, row_number() OVER (ORDER BY position, created_at, id) AS ordinal
        FROM jobscheduler_job WHERE id = ANY(%s)
    ) ranked
    WHERE id = ranked_id
"""
_SQLITE = """
    UPDATE jobscheduler_job SET position = %s + %s * ranked.ordinal
    FROM (
        SELECT id AS ranked_id, row_number() OVER (ORDER BY position, created_at, id) AS ordinal
        FROM jobscheduler_job WHERE id IN (SELECT value FROM json_each(%s))
    ) ranked
    WHERE id = ranked_id
"""
