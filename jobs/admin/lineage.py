"""The retry chain that a job belongs to, found in two statements however long it is."""

from __future__ import annotations

from typing import Any

from jobs import db
from jobs.models import Job

MOST = 25  # in each direction; the chain's ends are links on the way

CHAIN = f"""
    WITH RECURSIVE back (id, retry_of_id, steps) AS (
        SELECT id, retry_of_id, 0 FROM jobscheduler_job WHERE id = %s
        UNION ALL
        SELECT older.id, older.retry_of_id, back.steps + 1
        FROM back JOIN jobscheduler_job older ON older.id = back.retry_of_id WHERE back.steps < {MOST}
    ),
    forth (id, steps) AS (
        SELECT id, 0 FROM jobscheduler_job WHERE id = %s
        UNION ALL
        SELECT newer.id, forth.steps + 1
        FROM forth JOIN jobscheduler_job newer ON newer.retry_of_id = forth.id WHERE forth.steps < {MOST}
    )
    SELECT id FROM back UNION SELECT id FROM forth
"""  # noqa: S608 — our own number


def chain(job: Job) -> list[Job]:
    """All attempts, the first one first; empty for a job that is the only one."""
    key: Any = job.pk.hex if db.is_sqlite() else job.pk
    with db.connection().cursor() as cursor:
        cursor.execute(CHAIN, [key, key])
        ids = [row[0] for row in cursor.fetchall()]
    if len(ids) < 2:
        return []
    attempts = Job.objects.filter(pk__in=ids).select_related("run")
    told = ("job_type", "status", "attempt", "status_reason", "created_at")
    run = ("run__started_at", "run__finished_at", "run__worker")
    return list(attempts.only("pk", *told, *run).order_by("attempt", "pk"))
