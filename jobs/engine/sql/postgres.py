"""The hot statements on PostgreSQL: one statement a batch, prepared on the server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from jobs.engine.sql.columns import BLANK, CLAIM_TOLD, CLAIMED, CLOSED_LANE, LANE_HEAD, SUBMISSION
from jobs.engine.sql.postgres_insert import insert_jobs as insert_jobs
from jobs.engine.sql.prepared import NOW, execute
from jobs.engine.sql.prepared import execute_together as execute_together
from jobs.engine.sql.rollup import ADD_UP, INTO
from jobs.hooks import NO_CLAUSES, Clauses
from jobs.models.rollup import BUCKETS_SEC


class Parts(NamedTuple):
    """A statement that can be made one with another."""

    tables: str  # common table expressions
    answer: str  # a query over them
    width: int  # how many columns it has


# A claim's, of a run that goes on; the first claim of a chain finds none.
KEPT_ARTIFACTS = "CASE WHEN fence > 1 THEN (SELECT artifacts FROM jobscheduler_jobrun r WHERE r.job_id = took.id) END"
_BUCKETS = f"ARRAY[{', '.join(map(str, BUCKETS_SEC))}]::double precision[]"


def finish_jobs(
    connection: Any, ends: Sequence[Sequence[Any]], actor: tuple[str, str], writer: str, clauses: Clauses = NO_CLAUSES
) -> list[Any]:
    """Record ends (id, token, status, reason, error, exit_code, artifacts, data, retry_in, retry_id).

    Returns a row an end: id, verdict (done | replay | lost), tenant, retried_by, in a group? None at all if the
    guard of the clauses is false.
    """
    finish, said = _finish_parts(ends, actor, writer, clauses)
    return execute(connection, _whole(finish), said)


def _finish_parts(
    ends: Sequence[Sequence[Any]], actor: tuple[str, str], writer: str, clauses: Clauses, *, lanes: bool = True
) -> tuple[Parts, dict[str, Any]]:
    retries = any(end[8] is not None for end in ends)
    given = f"[{','.join(map(_as_json, ends))}]"
    ids = uuid_array([end[0] for end in ends])
    said = {"ends": given, "ids": ids, "actor_kind": actor[0], "actor": actor[1], "writer": writer}
    return _finish(retries, clauses, lanes), said


def _as_json(end: Sequence[Any]) -> str:
    """One end as a JSON object. Put together by hand: this is most of what a worker does for a job that did nothing."""
    job_id, token, status, reason, error, exit_code, artifacts, data, retry_in, retry_id = end
    text = f'{{"id":"{job_id}","token":"{token}","status":"{status}","exit_code":{exit_code},"artifacts":{artifacts}'
    if reason or error:
        text += f',"reason":{json.dumps(reason)},"error":{json.dumps(error)}'
    if data is not None:
        text += f',"data":{data}'
    if retry_in is not None:
        text += f',"retry_in":{retry_in!r},"retry_id":"{retry_id}"'
    return text + "}"


def uuid_array(ids: Sequence[UUID]) -> str:
    """An array parameter as the server reads it; the driver's own dumper is many times slower."""
    return f"{{{','.join(map(str, ids))}}}"


def exchange(
    connection: Any,
    ends: Sequence[Sequence[Any]],
    actor: tuple[str, str],
    writer: str,
    clauses: Clauses,
    claim: tuple[Parts, dict[str, Any]],
) -> tuple[list[Any], list[Any]]:
    """Finish and claim in one statement; returns what each of them answers.

    The claim sees the queue as it was before the ends: only for ends of jobs in no lane, which let nobody forward.
    """
    finish, said = _finish_parts(ends, actor, writer, clauses, lanes=False)
    rows = execute(connection, _together(finish, claim[0]), said | claim[1])
    ended = [row[: finish.width] for row in rows if row[0] is not None]
    return ended, [row[finish.width :] for row in rows if row[0] is None]


@cache
def _together(one: Parts, other: Parts) -> str:
    empty = [", ".join(["NULL"] * parts.width) for parts in (one, other)]
    return f"""
    WITH {one.tables}, {other.tables}
    SELECT one.*, {empty[1]} FROM ({one.answer}) one UNION ALL SELECT {empty[0]}, other.* FROM ({other.answer}) other
    """


@cache
def _whole(parts: Parts) -> str:
    return f"WITH {parts.tables} {parts.answer}"


@cache
def _finish(retries: bool, clauses: Clauses, lanes: bool) -> Parts:
    kept = [f"j.{name}" for name in ("base_priority", "position", "attempt", "checkpoint", *SUBMISSION)]
    told = ["j.job_type", "j.tenant", "j.resource", "j.lane_id", "j.group_id"]
    returned = ", ".join(dict.fromkeys([*told, *kept] if retries else told))  # as the row is under its lock
    retry = f"""
    retry AS (
        INSERT INTO jobscheduler_job (id, {", ".join(SUBMISSION)}, status, gate, priority, position, created_at, not_before,
                                      hold, holds_lane, idempotency_hash, retry_of_id, attempt, checkpoint, {", ".join(BLANK)})
        SELECT retry_id, {", ".join(SUBMISSION)}, 'QUEUED', 1, base_priority, position, {NOW},
               {NOW} + retry_in * interval '1 second', false, lane_id IS NOT NULL, '', id, attempt + 1, checkpoint,
               {", ".join(BLANK.values())}
        FROM ended WHERE retried
        ON CONFLICT (retry_of_id) DO NOTHING
        RETURNING id, retry_of_id
    ),"""
    retry_events = """
        UNION ALL SELECT retry_of_id, 'RETRY_CREATED', 'FAILED', 'FAILED', '', NULL, jsonb_build_object('retried_by', id)
        FROM retry
        UNION ALL SELECT id, 'SUBMITTED', '', 'QUEUED', 'retry of ' || retry_of_id, NULL, NULL FROM retry"""
    mark = """
    mark AS (
        INSERT INTO jobscheduler_lanemark (lane_id)
        SELECT DISTINCT lane_id FROM ended WHERE lane_id IS NOT NULL AND status <> 'FAILED'
    ),"""
    tables = f"""
    given AS MATERIALIZED (
        SELECT id, token, status, coalesce(reason, '') AS reason, coalesce(error, '') AS error, exit_code, artifacts,
               data, retry_in, retry_id
        FROM json_to_recordset(%(ends)s::json) AS t(
            id uuid, token uuid, status text, reason text, error text, exit_code integer, artifacts jsonb, data jsonb,
            retry_in double precision, retry_id uuid)
        WHERE {clauses.guard or "true"}
    ),
    ended AS (
        UPDATE jobscheduler_job j
        SET status = g.status, status_reason = g.reason, gate = 0,
            lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, heartbeat_at = NULL,
            holds_lane = (j.lane_id IS NOT NULL AND g.status = 'FAILED' AND (g.retry_in IS NULL OR j.cancel_requested))
        FROM given g
        WHERE j.id = ANY(%(ids)s::uuid[]) AND j.id = g.id AND j.lease_token = g.token
        RETURNING j.id, g.token, g.status, g.reason, g.error, g.exit_code, g.artifacts, g.data, g.retry_in, g.retry_id,
                  {returned}, j.created_at, (g.retry_in IS NOT NULL AND NOT j.cancel_requested) AS retried
    ),
    run AS (
        UPDATE jobscheduler_jobrun r
        SET status = e.status, finished_at = {NOW}, exit_code = e.exit_code, error = e.error, artifacts = e.artifacts
        FROM ended e WHERE r.job_id = ANY(%(ids)s::uuid[]) AND r.job_id = e.id
        RETURNING e.tenant, e.resource, e.job_type, e.status AS outcome, e.retried::integer AS retried,
                  CASE WHEN e.data->>'cause' IN ('LEASE_EXPIRED', 'CRASH_RECOVERY') THEN 1 ELSE 0 END AS recovered,
                  greatest(extract(epoch FROM r.started_at - e.created_at), 0) AS waited,
                  greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran
    ),{retry if retries else ""}
    event AS (
        INSERT INTO jobscheduler_jobevent
               (job_id, kind, from_status, to_status, reason, token, data, at, actor_kind, actor_name)
        SELECT t.*, {NOW}, %(actor_kind)s, %(actor)s
        FROM (SELECT id, status AS kind, 'RUNNING' AS source, status AS target, reason, token, data FROM ended
              {retry_events if retries else ""}) t
    ),
    {mark if lanes else ""}
    minute AS (
        {INTO}
        SELECT date_trunc('minute', {NOW}), %(writer)s, tenant, resource, job_type, outcome,
               width_bucket(waited, {_BUCKETS}), width_bucket(ran, {_BUCKETS}),
               count(*), sum(waited), sum(ran), sum(retried), sum(recovered)
        FROM run GROUP BY 3, 4, 5, 6, 7, 8 ORDER BY 3, 4, 5, 6, 7, 8
        {ADD_UP}
    ){clauses.along}
    """
    answer = """
    SELECT g.id,
           CASE WHEN e.id IS NOT NULL THEN 'done'
                WHEN (SELECT true FROM jobscheduler_jobevent x WHERE x.job_id = g.id AND x.token = g.token AND x.kind = g.status
                        AND x.actor_kind = %(actor_kind)s AND x.actor_name = %(actor)s LIMIT 1) THEN 'replay' -- EXISTS may hash all events
                ELSE 'lost' END,
           e.tenant, CASE WHEN e.retried THEN e.retry_id END, e.group_id IS NOT NULL
    FROM given g LEFT JOIN ended e ON e.id = g.id
    """
    return Parts(tables, answer, 5)


def claim_jobs(
    connection: Any,
    pick: str,
    params: Sequence[Any],
    life: str,
    slots: Sequence[int],
    worker: str,
    lease_sec: float,
    clauses: Clauses = NO_CLAUSES,
) -> list[Any]:
    """Take the rows that `pick` (a compiled queryset of ids, locked) names, a slot each. Returns CLAIMED + artifacts.

    Takes none if the guard of the clauses is false.
    """
    parts, said = claim_parts(pick, params, life, slots, worker, lease_sec, clauses)
    return execute(connection, _whole(parts), said)


def claim_parts(
    pick: str,
    params: Sequence[Any],
    life: str,
    slots: Sequence[int],
    worker: str,
    lease_sec: float,
    clauses: Clauses = NO_CLAUSES,
) -> tuple[Parts, dict[str, Any]]:
    """The same, to be made one with the end of other jobs: see `exchange`."""
    said = {f"pick_{place}": value for place, value in enumerate(params)}
    numbers = f"{{{','.join(map(str, slots))}}}"
    return _claim(pick, clauses), said | {"life": life, "slots": numbers, "lease_sec": lease_sec, "worker": worker}


@cache
def _claim(pick: str, clauses: Clauses) -> Parts:
    returned = (*CLAIMED, *(CLAIM_TOLD if clauses.along else ()))
    places = count()
    picked = re.sub("%s", lambda _: f"%(pick_{next(places)})s", pick)
    tables = f"""
    pick AS MATERIALIZED ({picked}),
    took AS (
        UPDATE jobscheduler_job j
        SET status = 'RUNNING', gate = 0, status_reason = '', recheck_at = NULL, cancel_requested = false, cancel_mode = '',
            lease_owner = %(life)s || '#' || (%(slots)s::integer[])[p.slot], lease_token = gen_random_uuid(),
            lease_expires_at = {NOW} + %(lease_sec)s * interval '1 second', heartbeat_at = {NOW},
            dispatched_at = coalesce(j.dispatched_at, {NOW}), fence = j.fence + 1, holds_lane = (j.lane_id IS NOT NULL)
        FROM (SELECT id, row_number() OVER (ORDER BY priority DESC, position, created_at, id) AS slot FROM pick) p
        WHERE j.id = ANY(ARRAY(SELECT id FROM pick)) AND j.id = p.id  -- the array makes it an index walk at any size
          AND {clauses.guard or "true"}
        RETURNING {", ".join(f"j.{name}" for name in returned)}
    ),
    begun AS (
        INSERT INTO jobscheduler_jobrun (job_id, status, started_at, error, artifacts, worker)
        SELECT id, 'RUNNING', {NOW}, '', '{{}}', %(worker)s FROM took ON CONFLICT (job_id) DO NOTHING
    ),
    begun_event AS (
        INSERT INTO jobscheduler_jobevent (job_id, at, kind, from_status, to_status, reason, actor_kind, actor_name)
        SELECT id, {NOW}, 'RUNNING', 'QUEUED', 'RUNNING', '', 'worker', %(worker)s FROM took
    ){clauses.along}
    """
    answer = (
        f"SELECT {', '.join(CLAIMED)}, (SELECT artifacts FROM jobscheduler_jobrun r WHERE r.job_id = took.id) FROM took"
    )
    return Parts(tables, answer, len(CLAIMED) + 1)


def pick_heads(
    connection: Any, conditions: str, params: Sequence[Any], most: int, *, remote: bool = False
) -> list[Any]:
    """The first `most` jobs of the flows that have work and meet the conditions: id and flow, in dispatch order.

    Walks the flows, not the jobs: it does not matter how many jobs of a closed flow stand before.
    """
    ready = f"gate = 3 AND {'remote' if remote else 'NOT remote'}"
    order = "priority DESC, position, created_at, id"
    columns = "id, tenant, job_type, resource, addon_id, priority, position, created_at"
    sql = f"""
    WITH RECURSIVE head AS (
        (SELECT flow_id, {columns} FROM jobscheduler_job WHERE {ready} ORDER BY flow_id, {order} LIMIT 1)
        UNION ALL
        SELECT following.* FROM head CROSS JOIN LATERAL (
            SELECT flow_id, {columns} FROM jobscheduler_job
            WHERE {ready} AND flow_id > head.flow_id ORDER BY flow_id, {order} LIMIT 1
        ) following
    ),
    best AS MATERIALIZED (SELECT flow_id FROM head WHERE {conditions} ORDER BY {order} LIMIT {most:d})
    SELECT job.id, job.tenant, job.job_type, job.resource, job.addon_id FROM best CROSS JOIN LATERAL (
        SELECT {columns} FROM jobscheduler_job  -- an equation would let the planner walk all flows in dispatch order
        WHERE flow_id BETWEEN best.flow_id AND best.flow_id AND {ready} ORDER BY flow_id, {order} LIMIT {most:d}
    ) job ORDER BY {order} LIMIT {most:d}
    """
    return execute(connection, sql, list(params))


def promote(connection: Any, most: int) -> tuple[int, int]:
    """Look at the lanes of the oldest marks again and let exactly the head of each free lane through.

    Call in a transaction. Takes what it can have without waiting; what it could not decide keeps its mark.
    Returns how many marks it looked at, and how many it left.
    """
    ((looked, missing, marks, lanes, ready),) = execute(connection, _promote_look(most), [])
    if missing:
        execute(connection, _MISSING_TARGETS, [])
        ((looked, _, marks, lanes, ready),) = execute(connection, _promote_look(most), [])
    decided = execute(connection, _PROMOTE, {"marks": marks, "lanes": lanes, "ready": ready}) if lanes else []
    return looked, looked - len(decided)


# Enqueue must not insert targets: two callers that name two new ones in opposite order would deadlock.
_MISSING_TARGETS = """
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
def _promote_look(most: int) -> str:
    return f"""
    WITH mark AS MATERIALIZED (
        SELECT id, lane_id FROM jobscheduler_lanemark ORDER BY id LIMIT {most:d} FOR UPDATE SKIP LOCKED
    ),
    lane AS MATERIALIZED (
        SELECT id FROM jobscheduler_target WHERE id IN (SELECT lane_id FROM mark) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ),
    ready AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE lane_id IN (SELECT id FROM lane) AND gate = 3 FOR UPDATE SKIP LOCKED
    ),
    new AS (  -- lanes that have no target yet; one without a job that waits never gets one: nothing to decide
        SELECT m.id, EXISTS (SELECT 1 FROM jobscheduler_job j WHERE j.lane_id = m.lane_id AND j.gate IN (2, 3)) AS waits
        FROM mark m WHERE NOT EXISTS (SELECT 1 FROM jobscheduler_target t WHERE t.id = m.lane_id)
    ),
    nobody AS (DELETE FROM jobscheduler_lanemark WHERE id IN (SELECT id FROM new WHERE NOT waits))
    SELECT (SELECT count(*) FROM mark) - (SELECT count(*) FROM new WHERE NOT waits), EXISTS (SELECT 1 FROM new WHERE waits),
           ARRAY(SELECT m.id FROM mark m JOIN lane l ON l.id = m.lane_id), ARRAY(SELECT id FROM lane),
           ARRAY(SELECT id FROM ready)
    """


# A new statement, hence a snapshot taken under those locks.
_PROMOTE = f"""
    WITH lane AS MATERIALIZED (
        SELECT t.id, {CLOSED_LANE} AS closed FROM jobscheduler_target t
        WHERE t.id = ANY(%(lanes)s::uuid[]) AND NOT EXISTS (  -- its ready job is just being claimed: later
            SELECT 1 FROM jobscheduler_job j WHERE j.lane_id = t.id AND j.gate = 3 AND j.id <> ALL(%(ready)s::uuid[]))
    ),
    head AS MATERIALIZED (SELECT t.id AS lane_id, {LANE_HEAD} AS id FROM lane t WHERE NOT t.closed),
    locked AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE id IN (SELECT id FROM head) FOR UPDATE SKIP LOCKED
    ),
    up AS (UPDATE jobscheduler_job SET gate = 3 WHERE id IN (SELECT id FROM locked) AND gate = 2),
    down AS (
        UPDATE jobscheduler_job SET gate = 2
        WHERE id = ANY(%(ready)s::uuid[]) AND gate = 3 AND lane_id IN (SELECT id FROM lane)
          AND id NOT IN (SELECT id FROM head WHERE id IS NOT NULL)
    )
    DELETE FROM jobscheduler_lanemark WHERE id = ANY(%(marks)s::bigint[]) AND lane_id IN (
        SELECT id FROM lane
        EXCEPT SELECT lane_id FROM head WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM locked))
    RETURNING 1
"""


def wake_due(connection: Any, most: int) -> int:
    """Jobs whose time has come step forward: to their lane, or to the front."""
    sql = f"""
    WITH due AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE gate = 1 AND coalesce(recheck_at, not_before) <= {NOW}
        ORDER BY coalesce(recheck_at, not_before) LIMIT {most:d} FOR UPDATE SKIP LOCKED
    ),
    woken AS (
        UPDATE jobscheduler_job SET gate = CASE WHEN lane_id IS NULL THEN 3 ELSE 2 END, recheck_at = NULL
        WHERE id IN (SELECT id FROM due) RETURNING lane_id
    ),
    mark AS (INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT lane_id FROM woken WHERE lane_id IS NOT NULL)
    SELECT count(*) FROM woken
    """
    return int(execute(connection, sql, [])[0][0])


def look_ahead(connection: Any) -> tuple[float | None, bool, bool]:
    """Seconds until the next job's time comes, whether some lane has a mark, and whether some job is ready."""
    sql = f"""
    SELECT (SELECT extract(epoch FROM min(coalesce(recheck_at, not_before)) - {NOW}) FROM jobscheduler_job WHERE gate = 1),
           EXISTS (SELECT 1 FROM jobscheduler_lanemark),
           (SELECT true FROM jobscheduler_job WHERE gate = 3 AND NOT remote
            ORDER BY priority DESC, position, created_at, id LIMIT 1) IS NOT NULL -- the order makes it a look into its index
    """
    ((until, marked, ready),) = execute(connection, sql, [])
    return None if until is None else float(until), marked, ready


def beat(
    connection: Any, leases: Sequence[tuple[UUID, UUID]], lease_sec: float, clock: str | None = None
) -> dict[UUID, tuple[bool, str]]:
    """Renew leases (job, token) whose rows are not locked. Returns the stop request of each renewed one.

    A job that is missing was locked, or is lost: look again.
    """
    sql = f"""
    UPDATE jobscheduler_job SET lease_expires_at = {NOW} + %s * interval '1 second', heartbeat_at = {NOW}
    WHERE id = ANY(ARRAY(SELECT id FROM jobscheduler_job WHERE id = ANY(%s::uuid[]) AND lease_token = ANY(%s::uuid[])
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, cancel_requested, cancel_mode
    """
    ids, tokens = ([lease[side] for lease in leases] for side in (0, 1))
    return {row[0]: (row[1], row[2]) for row in execute(connection, sql, [lease_sec, ids, tokens])}


def count_ends(connection: Any, ids: Sequence[UUID], writer: str) -> None:
    """Add jobs that have just ended, outside of `finish_jobs`, to their minute."""
    execute(connection, _COUNT, {"ids": list(ids), "writer": writer})


_COUNT = f"""
    WITH ended AS (
        SELECT j.tenant, j.resource, j.job_type, j.status, greatest(extract(epoch FROM r.started_at - j.created_at), 0) AS waited,
               greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran, r.started_at IS NOT NULL AS started
        FROM jobscheduler_job j LEFT JOIN jobscheduler_jobrun r ON r.job_id = j.id WHERE j.id = ANY(%(ids)s::uuid[])
    )
    {INTO}
    SELECT date_trunc('minute', {NOW}), %(writer)s, tenant, resource, job_type, status,
           CASE WHEN started THEN width_bucket(waited, {_BUCKETS}) ELSE -1 END,
           CASE WHEN started THEN width_bucket(ran, {_BUCKETS}) ELSE -1 END,
           count(*), sum(coalesce(waited, 0)), sum(coalesce(ran, 0)), 0, 0
    FROM ended GROUP BY 3, 4, 5, 6, 7, 8 ORDER BY 3, 4, 5, 6, 7, 8
    {ADD_UP}
    RETURNING 1
"""
