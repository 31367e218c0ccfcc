"""The hot statements on SQLite: a few statements a batch, in one IMMEDIATE transaction.

SQLite's clock is the host's, so times are taken here; it has no arrays and no writing CTEs, so batches travel as
JSON or by `executemany`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from jobs.engine.identity import beat_clock
from jobs.engine.sql import Statement
from jobs.engine.sql.columns import BLANK, CLAIMED, CLOSED_LANE, LANE_HEAD, SUBMISSION
from jobs.engine.sql.rollup import ADD_UP, INTO, KEY, SUMS
from jobs.models.rollup import BUCKETS_SEC


def execute_together(connection: Any, *statements: Statement) -> list[list[Any]]:
    with connection.cursor() as cursor:
        return [cursor.execute(*each).fetchall() for each in statements]


def claim_jobs(
    connection: Any, pick: str, params: Sequence[Any], life: str, slots: Sequence[int], worker: str, lease_sec: float
) -> list[Any]:
    """Take the rows that `pick` (a compiled queryset of ids) names, a slot each. Returns CLAIMED + artifacts."""
    now = timezone.now()
    at, until = _stored(connection, now), _stored(connection, now + timedelta(seconds=lease_sec))
    with connection.cursor() as cursor:
        cursor.execute(pick, params)
        picked = [row[0] for row in cursor.fetchall()]
        if not picked:
            return []
        given = [(job, uuid4().hex, f"{life}#{slot}") for job, slot in zip(picked, slots, strict=False)]
        cursor.execute(_CLAIM, [until, at, beat_clock(), at, json.dumps(given)])
        taken = {row[0]: row for row in cursor.fetchall()}
        cursor.executemany(_OPEN_RUN, [(job, at, worker) for job in taken])
        _events(
            connection,
            cursor,
            now,
            ("worker", worker),
            [(job, "RUNNING", "QUEUED", "RUNNING", "", None, None) for job in picked],
        )
        cursor.execute(
            "SELECT job_id, artifacts FROM jobscheduler_jobrun WHERE job_id IN (SELECT value FROM json_each(%s))",
            [json.dumps(picked)],
        )
        artifacts = dict(cursor.fetchall())
    return [_claimed(taken[job], artifacts[job]) for job in picked]


_CLAIM = f"""
    UPDATE jobscheduler_job
    SET status = 'RUNNING', gate = 0, status_reason = '', recheck_at = NULL, cancel_requested = false, cancel_mode = '',
        lease_owner = g.slot, lease_token = g.token, lease_expires_at = %s, heartbeat_at = %s, beat_clock = %s,
        dispatched_at = coalesce(dispatched_at, %s), fence = fence + 1, holds_lane = (lane_id IS NOT NULL)
    FROM (SELECT json_extract(value, '$[0]') AS job, json_extract(value, '$[1]') AS token,
                 json_extract(value, '$[2]') AS slot FROM json_each(%s)) g
    WHERE jobscheduler_job.id = g.job
    RETURNING {", ".join(f"jobscheduler_job.{name}" for name in CLAIMED)}
"""
_OPEN_RUN = """
    INSERT INTO jobscheduler_jobrun (job_id, status, started_at, error, artifacts, worker)
    SELECT g.job, 'RUNNING', g.now, '', '{}', g.worker FROM (SELECT %s AS job, %s AS now, %s AS worker) g
    WHERE NOT EXISTS (SELECT 1 FROM jobscheduler_jobrun WHERE job_id = g.job)
"""
_UUIDS = tuple(CLAIMED.index(name) for name in ("id", "lease_token", "group_id", "retry_of_id"))


def _claimed(row: Sequence[Any], artifacts: str) -> tuple[Any, ...]:
    values = list(row)
    for index in _UUIDS:
        values[index] = None if values[index] is None else UUID(hex=values[index])
    return (*values, artifacts)


def pick_heads(
    connection: Any, conditions: str, params: Sequence[Any], most: int, *, remote: bool = False
) -> list[Any]:
    """The first `most` jobs of the flows that have work and meet the conditions: id and flow, in dispatch order."""
    ready = f"gate = 3 AND {'remote' if remote else 'NOT remote'}"
    order = "priority DESC, position, created_at, id"
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH RECURSIVE flow(flow_id) AS (
                SELECT min(flow_id) FROM jobscheduler_job WHERE {ready}
                UNION ALL
                SELECT (SELECT min(flow_id) FROM jobscheduler_job WHERE {ready} AND flow_id > flow.flow_id)
                FROM flow WHERE flow.flow_id IS NOT NULL
            )
            SELECT head.flow_id FROM flow JOIN jobscheduler_job head ON head.id = (
                SELECT id FROM jobscheduler_job j WHERE j.flow_id = flow.flow_id AND {ready}
                ORDER BY {order} LIMIT 1)
            WHERE {conditions} ORDER BY {order} LIMIT {most:d}
            """,
            params,
        )
        found: list[Any] = []
        for (flow,) in cursor.fetchall():
            cursor.execute(
                f"""
                SELECT id, tenant, job_type, resource, addon_id, -priority, position, created_at FROM jobscheduler_job
                WHERE flow_id = %s AND {ready} ORDER BY {order} LIMIT {most:d}
                """,
                [flow],
            )
            found += cursor.fetchall()
    found.sort(key=lambda row: (*row[5:], row[0]))
    return [(UUID(hex=row[0]), *row[1:5]) for row in found[:most]]


def promote(connection: Any, most: int) -> tuple[int, int]:
    """Look at the lanes of the oldest marks again and let exactly the head of each free lane through.

    Returns how many marks it looked at, and how many it left.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(id) FROM (SELECT id FROM jobscheduler_lanemark ORDER BY id LIMIT %s)", [most])
        (last,) = cursor.fetchone()
        if last is None:
            return 0, 0
        cursor.execute(_MISSING_TARGETS, [_stored(connection, timezone.now()), last])
        cursor.execute(
            f"""
            SELECT t.id, {CLOSED_LANE}, {LANE_HEAD} FROM jobscheduler_target t
            WHERE t.id IN (SELECT lane_id FROM jobscheduler_lanemark WHERE id <= %s)
            """,
            [last],
        )
        lanes = cursor.fetchall()
        heads = json.dumps([head for _, closed, head in lanes if head and not closed])
        cursor.execute(
            "UPDATE jobscheduler_job SET gate = 3 WHERE gate = 2 AND id IN (SELECT value FROM json_each(%s))", [heads]
        )
        cursor.execute(
            "UPDATE jobscheduler_job SET gate = 2 WHERE gate = 3 AND lane_id IN (SELECT value FROM json_each(%s))"
            " AND id NOT IN (SELECT value FROM json_each(%s))",
            [json.dumps([lane for lane, _, _ in lanes]), heads],
        )
        cursor.execute("DELETE FROM jobscheduler_lanemark WHERE id <= %s", [last])
        return int(cursor.rowcount), 0


_MISSING_TARGETS = """
    INSERT INTO jobscheduler_target (id, tenant, key, paused, paused_by, reason, created_at)
    SELECT j.lane_id, j.tenant, j.target, false, '', '', %s FROM jobscheduler_job j
    WHERE j.gate IN (2, 3) AND j.lane_id IN (
        SELECT m.lane_id FROM jobscheduler_lanemark m LEFT JOIN jobscheduler_target t ON t.id = m.lane_id
        WHERE m.id <= %s AND t.id IS NULL)
    GROUP BY j.lane_id
    ON CONFLICT DO NOTHING
"""


def wake_due(connection: Any, most: int) -> int:
    """Jobs whose time has come step forward: to their lane, or to the front."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            UPDATE jobscheduler_job SET gate = CASE WHEN lane_id IS NULL THEN 3 ELSE 2 END, recheck_at = NULL
            WHERE id IN (SELECT id FROM jobscheduler_job WHERE gate = 1 AND coalesce(recheck_at, not_before) <= %s
                         ORDER BY coalesce(recheck_at, not_before) LIMIT {most:d})
            RETURNING lane_id
            """,
            [_stored(connection, timezone.now())],
        )
        woken = [row[0] for row in cursor.fetchall()]
        _mark(cursor, set(woken))
    return len(woken)


def look_ahead(connection: Any) -> tuple[float | None, bool, bool]:
    """Seconds until the next job's time comes, whether some lane has a mark, and whether some job is ready."""
    due = "SELECT min(coalesce(recheck_at, not_before)) FROM jobscheduler_job WHERE gate = 1"
    ready = (
        "SELECT 1 FROM jobscheduler_job WHERE gate = 3 AND NOT remote ORDER BY priority DESC, position, created_at, id"
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ({due}), EXISTS (SELECT 1 FROM jobscheduler_lanemark), EXISTS ({ready})")
        due_at, marked, is_ready = cursor.fetchone()
    until = None if due_at is None else (moment(due_at) - timezone.now()).total_seconds()
    return until, bool(marked), bool(is_ready)


def beat(
    connection: Any, leases: Sequence[tuple[UUID, UUID]], lease_sec: float, clock: str | None = None
) -> dict[UUID, tuple[bool, str]]:
    """Renew leases (job, token). Returns the stop request of each renewed one; a missing one is lost."""
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE jobscheduler_job SET lease_expires_at = %s, heartbeat_at = %s, beat_clock = %s
            WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(%s))
              AND lease_token IN (SELECT json_extract(value, '$[1]') FROM json_each(%s))
            RETURNING id, cancel_requested, cancel_mode
            """,
            [
                _stored(connection, now + timedelta(seconds=lease_sec)),
                _stored(connection, now),
                clock,
                *[json.dumps([(job.hex, token.hex) for job, token in leases])] * 2,
            ],
        )
        return {UUID(hex=row[0]): (bool(row[1]), row[2]) for row in cursor.fetchall()}


def finish_jobs(connection: Any, ends: Sequence[Sequence[Any]], actor: tuple[str, str], writer: str) -> list[Any]:
    """Record ends (id, token, status, reason, error, exit_code, artifacts, data, retry_in, retry_id).

    Returns a row an end: id, verdict (done | replay | lost), tenant, retried_by, in a group?
    """
    now = timezone.now()
    with connection.cursor() as cursor:
        ended = _end(cursor, ends)
        done = [end for end in ends if end[0] in ended]
        started = _end_runs(connection, cursor, done, now)
        retried = [end for end in done if end[8] is not None and not ended[end[0]]["cancel_requested"]]
        _retry(connection, cursor, retried, now)
        _events(connection, cursor, now, actor, _finish_events(done, retried))
        _mark(cursor, {ended[end[0]]["lane_id"] for end in done if end[2] != "FAILED"})
        again = {end[0] for end in retried}
        counted = [_counted(end, ended[end[0]], started.get(end[0]), end[0] in again) for end in done]
        _minutes(connection, cursor, counted, now, writer)
        replayed = _replays(cursor, [end for end in ends if end[0] not in ended], actor)
    made = {end[0]: end[9] for end in retried}
    return [_answer(end, ended, replayed, made.get(end[0])) for end in ends]


def _counted(end: Sequence[Any], job: dict[str, Any], started_at: Any, retried: bool) -> tuple[Any, ...]:
    """As `_minutes` wants it."""
    recovered = end[7] is not None and json.loads(end[7]).get("cause") in ("LEASE_EXPIRED", "CRASH_RECOVERY")
    flow = (job["tenant"], job["resource"], job["job_type"])
    return (*flow, end[2], job["created_at"], started_at, int(retried), int(recovered))


def _answer(
    end: Sequence[Any], ended: dict[UUID, Any], replayed: set[tuple[UUID, UUID]], retried_by: UUID | None
) -> tuple[Any, ...]:
    job = ended.get(end[0])
    if job is None:
        return (end[0], "replay" if (end[0], end[1]) in replayed else "lost", None, None, False)
    return (end[0], "done", job["tenant"], retried_by, job["group_id"] is not None)


def _end(cursor: Any, ends: Sequence[Sequence[Any]]) -> dict[UUID, dict[str, Any]]:
    cursor.execute(
        """
        UPDATE jobscheduler_job
        SET status = g.status, status_reason = g.reason, gate = 0,
            lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, heartbeat_at = NULL, beat_clock = NULL,
            holds_lane = (lane_id IS NOT NULL AND g.status = 'FAILED' AND (g.retry_in IS NULL OR cancel_requested))
        FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS token,
                     json_extract(value, '$[2]') AS status, json_extract(value, '$[3]') AS reason,
                     json_extract(value, '$[4]') AS retry_in
              FROM json_each(%s)) g
        WHERE jobscheduler_job.id = g.id AND jobscheduler_job.lease_token = g.token
        RETURNING jobscheduler_job.id, tenant, resource, job_type, lane_id, group_id, cancel_requested, created_at
        """,
        [json.dumps([(end[0].hex, end[1].hex, end[2], end[3], end[8]) for end in ends])],
    )
    names = ("tenant", "resource", "job_type", "lane_id", "group_id", "cancel_requested", "created_at")
    return {UUID(hex=row[0]): dict(zip(names, row[1:], strict=True)) for row in cursor.fetchall()}


def _end_runs(connection: Any, cursor: Any, done: Sequence[Sequence[Any]], now: datetime) -> dict[UUID, str]:
    cursor.execute(
        """
        UPDATE jobscheduler_jobrun
        SET status = g.status, finished_at = %s, exit_code = g.exit_code, error = g.error, artifacts = g.artifacts
        FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS status,
                     json_extract(value, '$[2]') AS error, json_extract(value, '$[3]') AS exit_code,
                     json_extract(value, '$[4]') AS artifacts
              FROM json_each(%s)) g
        WHERE job_id = g.id
        RETURNING job_id, started_at
        """,
        [_stored(connection, now), json.dumps([(e[0].hex, e[2], e[4], e[5], e[6]) for e in done])],
    )
    return {UUID(hex=row[0]): row[1] for row in cursor.fetchall()}


_RETRY = f"""
    INSERT INTO jobscheduler_job (id, {", ".join(SUBMISSION)}, status, gate, priority, position, created_at, not_before,
                                  hold, holds_lane, idempotency_hash, retry_of_id, attempt, checkpoint, {", ".join(BLANK)})
    SELECT %s, {", ".join(SUBMISSION)}, 'QUEUED', 1, base_priority, position, %s, %s,
           false, lane_id IS NOT NULL, '', id, attempt + 1, checkpoint, {", ".join(BLANK.values())}
    FROM jobscheduler_job WHERE id = %s ON CONFLICT (retry_of_id) DO NOTHING
"""


def _retry(connection: Any, cursor: Any, retried: Sequence[Sequence[Any]], now: datetime) -> None:
    at = _stored(connection, now)
    cursor.executemany(
        _RETRY,
        [(end[9].hex, at, _stored(connection, now + timedelta(seconds=end[8])), end[0].hex) for end in retried],
    )


def _finish_events(done: Sequence[Sequence[Any]], retried: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    events: list[tuple[Any, ...]] = [(e[0], e[2], "RUNNING", e[2], e[3], e[1], e[7]) for e in done]
    for end in retried:
        made = json.dumps({"retried_by": str(end[9])})
        events.append((end[0], "RETRY_CREATED", "FAILED", "FAILED", "", None, made))
        events.append((end[9], "SUBMITTED", "", "QUEUED", f"retry of {end[0]}", None, None))
    return events


def _replays(cursor: Any, missing: Sequence[Sequence[Any]], actor: tuple[str, str]) -> set[tuple[UUID, UUID]]:
    """Ends that this very actor has recorded before. Recovery keeps the token too; what it ended is lost."""
    if not missing:
        return set()
    cursor.execute(
        """
        SELECT e.job_id, e.token FROM jobscheduler_jobevent e
        JOIN (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS token,
                     json_extract(value, '$[2]') AS status FROM json_each(%s)) g
          ON e.job_id = g.id AND e.token = g.token AND e.kind = g.status
        WHERE e.actor_kind = %s AND e.actor_name = %s
        """,
        [json.dumps([(end[0].hex, end[1].hex, end[2]) for end in missing]), *actor],
    )
    return {(UUID(hex=row[0]), UUID(hex=row[1])) for row in cursor.fetchall()}


def _events(
    connection: Any, cursor: Any, now: datetime, actor: tuple[str, str], events: Sequence[Sequence[Any]]
) -> None:
    at = _stored(connection, now)
    cursor.executemany(
        "INSERT INTO jobscheduler_jobevent (job_id, kind, from_status, to_status, reason, token, data, at, actor_kind,"
        " actor_name) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [[*[each.hex if type(each) is UUID else each for each in event], at, *actor] for event in events],
    )


def _mark(cursor: Any, lanes: Iterable[Any]) -> None:
    marks = [(lane.hex if isinstance(lane, UUID) else lane,) for lane in lanes if lane is not None]
    if marks:
        cursor.executemany("INSERT INTO jobscheduler_lanemark (lane_id) VALUES (%s)", marks)


def count_ends(connection: Any, ids: Sequence[UUID], writer: str) -> None:
    """Add jobs that have just ended, outside of `finish_jobs`, to their minute."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT j.tenant, j.resource, j.job_type, j.status, j.created_at, r.started_at, 0, 0
            FROM jobscheduler_job j LEFT JOIN jobscheduler_jobrun r ON r.job_id = j.id
            WHERE j.id IN (SELECT value FROM json_each(%s))
            """,
            [json.dumps([each.hex for each in ids])],
        )
        _minutes(connection, cursor, cursor.fetchall(), timezone.now(), writer)


def _minutes(connection: Any, cursor: Any, ends: Iterable[Sequence[Any]], now: datetime, writer: str) -> None:
    """`ends`: tenant, resource, job type, outcome, created_at, started_at (None: never), retried?, recovered?"""
    added: dict[tuple[Any, ...], list[float]] = {}
    for tenant, resource, job_type, outcome, created_at, started_at, retried, recovered in ends:
        waited = ran = 0.0
        buckets = (-1, -1)
        if started_at is not None:
            waited = max((moment(started_at) - moment(created_at)).total_seconds(), 0.0)
            ran = max((now - moment(started_at)).total_seconds(), 0.0)
            buckets = (bisect_right(BUCKETS_SEC, waited), bisect_right(BUCKETS_SEC, ran))
        sums = added.setdefault((tenant, resource, job_type, outcome, *buckets), [0, 0.0, 0.0, 0, 0])
        for place, value in enumerate((1, waited, ran, retried, recovered)):
            sums[place] += value
    minute = _stored(connection, now.replace(second=0, microsecond=0))
    cursor.executemany(
        f"{INTO} VALUES ({', '.join(['%s'] * len(KEY + SUMS))}) {ADD_UP}",
        [(minute, writer, *key, *sums) for key, sums in added.items()],
    )


def moment(stored: str | datetime) -> datetime:
    """Django's converters turn a plain column into a naive datetime; an expression stays text."""
    parsed = parse_datetime(stored) if isinstance(stored, str) else stored
    assert parsed is not None, stored
    return parsed.replace(tzinfo=UTC)


def _stored(connection: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value.hex if isinstance(value, UUID) else value
