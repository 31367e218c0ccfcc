"""Make waiting jobs ready: when their time comes, and when their target is free.

Every change of a target inserts a mark in its transaction; the promoter consumes marks, and only the promoter decides
which job of a target is next. It waits for no lock: a target whose rows are locked keeps its mark.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

from django.utils import timezone

from jobs import db
from jobs.db import NOW, execute
from jobs.engine.sql import to_datetime, to_stored

# A target `t` is closed while it is paused, or while one of its jobs holds it without waiting to run.
_CLOSED = """(t.paused OR EXISTS (
            SELECT 1 FROM jobscheduler_job b WHERE b.lane_id = t.id AND b.holds_lane AND b.gate NOT IN (2, 3)))"""
# The next job of a free target `t`: of the retry chain that holds it, else the first in dispatch order.
_HEAD = """coalesce(
            (SELECT b.id FROM jobscheduler_job b WHERE b.lane_id = t.id AND b.holds_lane AND b.gate IN (2, 3) LIMIT 1),
            (SELECT b.id FROM jobscheduler_job b WHERE b.lane_id = t.id AND b.gate IN (2, 3)
             ORDER BY b.priority DESC, b.position, b.created_at, b.id LIMIT 1))"""


BATCH_SIZE = 500


class PromotionResult(NamedTuple):
    """The number of marks that one round read."""

    marks: int
    undecided: int  # of these, left for later because a row was locked
    ready: int = 0  # jobs that became ready; not counted on SQLite, where no worker waits for a notification

    @property
    def is_unfinished(self) -> bool:
        """Return whether another round has something to decide."""
        return self.marks >= BATCH_SIZE or self.undecided > 0


def promote(connection: Any, limit: int) -> PromotionResult:
    """Make exactly the first job of each free target ready, for the oldest marks. Call it in a transaction."""
    if db.is_sqlite(connection):
        return _promote_on_sqlite(connection, limit)
    ((marks, missing, mark_ids, targets, ready),) = execute(connection, _lock_marked(limit), None)
    if missing:
        execute(connection, INSERT_MISSING_TARGETS, None)
        ((marks, _, mark_ids, targets, ready),) = execute(connection, _lock_marked(limit), None)
    params = {"marks": mark_ids, "targets": targets, "ready": ready}
    ((decided, ready_count),) = execute(connection, PROMOTE, params) if targets else [(0, 0)]
    return PromotionResult(marks, marks - decided, ready_count)


# The insert of jobs must not insert targets: two callers with two new targets in opposite order would deadlock.
INSERT_MISSING_TARGETS = """
    INSERT INTO jobscheduler_target (id, tenant, key, paused, paused_by, reason)
    SELECT lane.lane_id, job.tenant, job.target, false, '', ''
    FROM (SELECT DISTINCT m.lane_id FROM jobscheduler_lanemark m LEFT JOIN jobscheduler_target t ON t.id = m.lane_id
          WHERE t.id IS NULL) lane
    CROSS JOIN LATERAL (
        SELECT tenant, target FROM jobscheduler_job WHERE lane_id = lane.lane_id AND gate IN (2, 3) LIMIT 1
    ) job
    ORDER BY 1 ON CONFLICT DO NOTHING RETURNING 1
"""


@cache
def _lock_marked(limit: int) -> str:
    return f"""
    WITH mark AS MATERIALIZED (
        SELECT id, lane_id FROM jobscheduler_lanemark ORDER BY id LIMIT {limit:d} FOR UPDATE SKIP LOCKED
    ),
    target AS MATERIALIZED (
        SELECT id FROM jobscheduler_target WHERE id IN (SELECT lane_id FROM mark)
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ),
    ready AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE lane_id IN (SELECT id FROM target) AND gate = 3 FOR UPDATE SKIP LOCKED
    ),
    new AS (  -- marks whose target has no row yet; it never gets one without a waiting job: nothing to decide
        SELECT m.id, EXISTS (SELECT 1 FROM jobscheduler_job j WHERE j.lane_id = m.lane_id AND j.gate IN (2, 3)) AS waits
        FROM mark m WHERE NOT EXISTS (SELECT 1 FROM jobscheduler_target t WHERE t.id = m.lane_id)
    ),
    pointless AS (DELETE FROM jobscheduler_lanemark WHERE id IN (SELECT id FROM new WHERE NOT waits))
    SELECT (SELECT count(*) FROM mark) - (SELECT count(*) FROM new WHERE NOT waits),
           EXISTS (SELECT 1 FROM new WHERE waits),
           ARRAY(SELECT m.id FROM mark m JOIN target t ON t.id = m.lane_id),
           ARRAY(SELECT id FROM target),
           ARRAY(SELECT id FROM ready)
    """


# A statement of its own: its snapshot is taken under those locks.
PROMOTE = f"""
    WITH target AS MATERIALIZED (
        SELECT t.id, {_CLOSED} AS closed FROM jobscheduler_target t
        WHERE t.id = ANY(%(targets)s::uuid[]) AND NOT EXISTS (  -- its ready job is being claimed: decide later
            SELECT 1 FROM jobscheduler_job j WHERE j.lane_id = t.id AND j.gate = 3 AND j.id <> ALL(%(ready)s::uuid[]))
    ),
    head AS MATERIALIZED (SELECT t.id AS lane_id, {_HEAD} AS id FROM target t WHERE NOT t.closed),
    locked AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE id IN (SELECT id FROM head) FOR UPDATE SKIP LOCKED
    ),
    up AS (UPDATE jobscheduler_job SET gate = 3 WHERE id IN (SELECT id FROM locked) AND gate = 2 RETURNING 1),
    down AS (
        UPDATE jobscheduler_job SET gate = 2
        WHERE id = ANY(%(ready)s::uuid[]) AND gate = 3 AND lane_id IN (SELECT id FROM target)
          AND id NOT IN (SELECT id FROM head WHERE id IS NOT NULL)
    ),
    decided AS (
        DELETE FROM jobscheduler_lanemark WHERE id = ANY(%(marks)s::bigint[]) AND lane_id IN (
            SELECT id FROM target
            EXCEPT SELECT lane_id FROM head WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM locked))
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM decided), (SELECT count(*) FROM up)
"""

_SQLITE_LAST_MARK = "SELECT max(id) FROM (SELECT id FROM jobscheduler_lanemark ORDER BY id LIMIT %s)"
_SQLITE_INSERT_MISSING_TARGETS = """
    INSERT INTO jobscheduler_target (id, tenant, key, paused, paused_by, reason, created_at)
    SELECT j.lane_id, j.tenant, j.target, false, '', '', %s FROM jobscheduler_job j
    WHERE j.gate IN (2, 3) AND j.lane_id IN (
        SELECT m.lane_id FROM jobscheduler_lanemark m LEFT JOIN jobscheduler_target t ON t.id = m.lane_id
        WHERE m.id <= %s AND t.id IS NULL)
    GROUP BY j.lane_id
    ON CONFLICT DO NOTHING
"""
_SQLITE_TARGETS = f"""
    SELECT t.id, {_CLOSED}, {_HEAD} FROM jobscheduler_target t
    WHERE t.id IN (SELECT lane_id FROM jobscheduler_lanemark WHERE id <= %s)
"""
_SQLITE_UP = "UPDATE jobscheduler_job SET gate = 3 WHERE gate = 2 AND id IN (SELECT value FROM json_each(%s))"
_SQLITE_DOWN = """
    UPDATE jobscheduler_job SET gate = 2
    WHERE gate = 3 AND lane_id IN (SELECT value FROM json_each(%s)) AND id NOT IN (SELECT value FROM json_each(%s))
"""
_SQLITE_DELETE_MARKS = "DELETE FROM jobscheduler_lanemark WHERE id <= %s"


def _promote_on_sqlite(connection: Any, limit: int) -> PromotionResult:
    with connection.cursor() as cursor:
        cursor.execute(_SQLITE_LAST_MARK, [limit])
        (last,) = cursor.fetchone()
        if last is None:
            return PromotionResult(0, 0)
        cursor.execute(_SQLITE_INSERT_MISSING_TARGETS, [to_stored(connection, timezone.now()), last])
        cursor.execute(_SQLITE_TARGETS, [last])
        targets = cursor.fetchall()
        heads = json.dumps([head for _, closed, head in targets if head and not closed])
        cursor.execute(_SQLITE_UP, [heads])
        cursor.execute(_SQLITE_DOWN, [json.dumps([target for target, _, _ in targets]), heads])
        cursor.execute(_SQLITE_DELETE_MARKS, [last])
        return PromotionResult(int(cursor.rowcount), 0)


# ---------------------------------------------------------------------- due times


def promote_due(connection: Any, limit: int) -> int:
    """Move jobs whose time has come to the queue of their target, or make them ready; return how many."""
    if db.is_sqlite(connection):
        return _promote_due_on_sqlite(connection, limit)
    return int(execute(connection, _promote_due(limit), None)[0][0])


@cache
def _promote_due(limit: int) -> str:
    return f"""
    WITH due AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE gate = 1 AND coalesce(recheck_at, not_before) <= {NOW}
        ORDER BY coalesce(recheck_at, not_before) LIMIT {limit:d} FOR UPDATE SKIP LOCKED
    ),
    promoted AS (
        UPDATE jobscheduler_job SET gate = CASE WHEN lane_id IS NULL THEN 3 ELSE 2 END, recheck_at = NULL
        WHERE id IN (SELECT id FROM due) RETURNING lane_id
    ),
    mark AS (
        INSERT INTO jobscheduler_lanemark (lane_id)
        SELECT DISTINCT lane_id FROM promoted WHERE lane_id IS NOT NULL
    )
    SELECT count(*) FROM promoted
    """


_SQLITE_PROMOTE_DUE = """
    UPDATE jobscheduler_job SET gate = CASE WHEN lane_id IS NULL THEN 3 ELSE 2 END, recheck_at = NULL
    WHERE id IN (SELECT id FROM jobscheduler_job WHERE gate = 1 AND coalesce(recheck_at, not_before) <= %s
                 ORDER BY coalesce(recheck_at, not_before) LIMIT %s)
    RETURNING lane_id
"""
_SQLITE_MARK = "INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT value FROM json_each(%s)"


def _promote_due_on_sqlite(connection: Any, limit: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_SQLITE_PROMOTE_DUE, [to_stored(connection, timezone.now()), limit])
        lanes = [row[0] for row in cursor.fetchall()]
        cursor.execute(_SQLITE_MARK, [json.dumps([lane for lane in lanes if lane is not None])])
    return len(lanes)


# ---------------------------------------------------------------------- state of the queue


class QueueState(NamedTuple):
    """The state of the queue, for a worker with free slots."""

    due_sec: float | None  # until the next scheduled job is due
    has_dirty_targets: bool
    has_ready_jobs: bool  # of any type: this worker need not serve them


def read_queue_state(connection: Any) -> QueueState:
    """Read without locks whether a job is due, a target dirty, a job ready."""
    if db.is_sqlite(connection):
        return _read_state_on_sqlite(connection)
    ((due_sec, marked, ready),) = execute(connection, QUEUE_STATE, None)
    return QueueState(None if due_sec is None else float(due_sec), marked, ready)


# The ORDER BY makes the planner search a ready job in the index.
QUEUE_STATE = f"""
    SELECT (SELECT extract(epoch FROM min(coalesce(recheck_at, not_before)) - {NOW})
            FROM jobscheduler_job WHERE gate = 1),
           EXISTS (SELECT 1 FROM jobscheduler_lanemark),
           (SELECT true FROM jobscheduler_job WHERE gate = 3 AND NOT remote
            ORDER BY priority DESC, position, created_at, id LIMIT 1) IS NOT NULL
"""
_SQLITE_QUEUE_STATE = """
    SELECT (SELECT min(coalesce(recheck_at, not_before)) FROM jobscheduler_job WHERE gate = 1),
           EXISTS (SELECT 1 FROM jobscheduler_lanemark),
           EXISTS (SELECT 1 FROM jobscheduler_job WHERE gate = 3 AND NOT remote
                   ORDER BY priority DESC, position, created_at, id)
"""


def _read_state_on_sqlite(connection: Any) -> QueueState:
    with connection.cursor() as cursor:
        cursor.execute(_SQLITE_QUEUE_STATE)
        due_at, marked, ready = cursor.fetchone()
    due_sec = None if due_at is None else (to_datetime(due_at) - timezone.now()).total_seconds()
    return QueueState(due_sec, bool(marked), bool(ready))
