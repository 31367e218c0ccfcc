"""Claims and ends on PostgreSQL. Both are moves of jobs: one statement makes either, or both at once.

A statement sets up each table that it writes, with all indexes and constraints, every time: a job that ends and the
next one to start share one update of the jobs and one insert of events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from jobs.engine.sql.columns import BLANK, CLAIM_TOLD, CLAIMED, SUBMISSION
from jobs.engine.sql.prepared import NOW, execute
from jobs.engine.sql.rollup import ADD_UP, INTO
from jobs.hooks import NO_CLAUSES, Clauses
from jobs.models.rollup import BUCKETS_SEC

BUCKETS = f"ARRAY[{', '.join(map(str, BUCKETS_SEC))}]::double precision[]"
# A claim's, of a run that goes on; the first claim of a chain finds none.
KEPT_ARTIFACTS = "CASE WHEN fence > 1 THEN (SELECT artifacts FROM jobscheduler_jobrun r WHERE r.job_id = took.id) END"
# What may be large of a job and is of no use once it has ended.
LARGE = ("params", "retry_policy", "checkpoint")


class Ends(NamedTuple):
    clauses: Clauses
    one: bool  # end, and no more
    retries: bool = False
    lanes: bool = False


class Starts(NamedTuple):
    pick: str  # a compiled queryset of ids, locked
    clauses: Clauses
    one: bool


Claim = tuple[Starts, dict[str, Any]]  # with its parameters

# What becomes of a job's columns. `c` is the change, `j` the job.
_ENDED = {
    "lease_owner": "NULL",
    "lease_token": "NULL",
    "lease_expires_at": "NULL",
    "heartbeat_at": "NULL",
    "holds_lane": "(j.lane_id IS NOT NULL AND c.status = 'FAILED' AND (c.retry_in IS NULL OR j.cancel_requested))",
}
_TAKEN = {
    "lease_owner": "%(life)s || '#' || (%(slots)s::integer[])[c.slot]",
    "lease_token": "c.token",
    "lease_expires_at": f"{NOW} + %(lease_sec)s * interval '1 second'",
    "heartbeat_at": NOW,
    "holds_lane": "(j.lane_id IS NOT NULL)",
    "recheck_at": "NULL",
    "cancel_requested": "false",
    "cancel_mode": "''",
    "dispatched_at": f"coalesce(j.dispatched_at, {NOW})",
    "fence": "j.fence + 1",
}
# An end as it is said, and as the server reads it.
_SAID = {
    "id": "uuid",
    "token": "uuid",
    "status": "text",
    "reason": "text",
    "error": "text",
    "exit_code": "integer",
    "artifacts": "jsonb",
    "data": "jsonb",
    "retry_in": "double precision",
    "retry_id": "uuid",
}
# Of that, what a job that starts has not.
_OF_ENDS = ("error", "exit_code", "artifacts", "data", "retry_in", "retry_id")


def finish_jobs(
    connection: Any, ends: Sequence[Sequence[Any]], actor: tuple[str, str], writer: str, clauses: Clauses = NO_CLAUSES
) -> list[Any]:
    """Record ends (id, token, status, reason, error, exit_code, artifacts, data, retry_in, retry_id).

    Returns a row an end: id, verdict (done | replay | lost), tenant, retried_by, in a group? None at all if the
    guard of the clauses is false.
    """
    kind = Ends(clauses, len(ends) == 1, _has_retries(ends), lanes=True)
    return execute(connection, _statement(kind, None), _said(ends, actor, writer))


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
    starts, said = a_claim(pick, params, life, slots, worker, lease_sec, clauses)
    return execute(connection, _statement(None, starts), said)


def a_claim(
    pick: str,
    params: Sequence[Any],
    life: str,
    slots: Sequence[int],
    worker: str,
    lease_sec: float,
    clauses: Clauses = NO_CLAUSES,
) -> Claim:
    """The same, to be made one with the end of other jobs: see `exchange`."""
    said = {f"pick_{place}": value for place, value in enumerate(params)}
    numbers = f"{{{','.join(map(str, slots))}}}"
    return Starts(pick, clauses, len(slots) == 1), said | {
        "life": life,
        "slots": numbers,
        "lease_sec": lease_sec,
        "worker": worker,
    }


def exchange(
    connection: Any,
    ends: Sequence[Sequence[Any]],
    actor: tuple[str, str],
    writer: str,
    clauses: Clauses,
    claim: Claim,
) -> tuple[list[Any], list[Any]]:
    """Finish and claim in one statement; returns the ends that are done, as `finish_jobs` does, and what was claimed.

    The claim sees the queue as it was before the ends: only for ends of jobs in no lane, which let nobody forward.
    """
    starts, said = claim
    kind = Ends(clauses, len(ends) == 1, _has_retries(ends))
    rows = execute(connection, _statement(kind, starts), _said(ends, actor, writer) | said)
    ended = [(row[2], "done", row[7], row[1], False) for row in rows if row[0]]
    return ended, [row[2:] for row in rows if not row[0]]


def _has_retries(ends: Sequence[Sequence[Any]]) -> bool:
    return any(end[8] is not None for end in ends)


def _said(ends: Sequence[Sequence[Any]], actor: tuple[str, str], writer: str) -> dict[str, Any]:
    said = {"ids": uuid_array([end[0] for end in ends]), "actor_kind": actor[0], "actor": actor[1], "writer": writer}
    if len(ends) > 1:
        return said | {"ends": f"[{','.join(map(_as_json, ends))}]"}
    return said | {name: None if value is None else str(value) for name, value in zip(_SAID, ends[0], strict=True)}


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


@cache
def _statement(ends: Ends | None, starts: Starts | None) -> str:
    return f"WITH {','.join(_tables(ends, starts))} {_answer(ends, starts)}"


def _tables(ends: Ends | None, starts: Starts | None) -> Iterator[str]:
    """Common table expressions, each after the ones it reads."""
    if ends is not None:
        yield _given(ends)
    if ends is not None and starts is not None:
        yield _HELD
    if starts is not None:
        yield _pick(ends, starts)
    yield _change(ends, starts)
    yield _moved(ends, starts)
    if starts is not None:
        yield "took AS NOT MATERIALIZED (SELECT * FROM moved WHERE slot IS NOT NULL)"
        yield _BEGUN
    if ends is not None:
        yield "ended AS NOT MATERIALIZED (SELECT * FROM moved WHERE slot IS NULL)"
        yield _RUN
        yield _minute(ends)
    if ends is not None and ends.retries:
        yield _RETRY
    if ends is not None and ends.lanes:
        yield _MARK
    told = "".join(side.clauses.along for side in (ends, starts) if side is not None)
    yield _event(ends, starts) + told


def _given(ends: Ends) -> str:
    if ends.one:
        said = ", ".join(f"%({name})s::{kind} AS {name}" for name, kind in _SAID.items())
        source = ""
    else:
        said = ", ".join(f"coalesce({n}, '') AS {n}" if n in ("reason", "error") else n for n in _SAID)
        columns = ", ".join(f"{name} {kind}" for name, kind in _SAID.items())
        source = f"FROM json_to_recordset(%(ends)s::json) AS t({columns})"
    return f"given AS (SELECT {said} {source} WHERE {ends.clauses.guard or 'true'})"


# Jobs that end are waited for before any is picked: who holds one of the queue must not wait for one that runs.
_HELD = """
    held AS MATERIALIZED (SELECT id FROM jobscheduler_job WHERE id = ANY(%(ids)s::uuid[]) FOR NO KEY UPDATE)"""


def _pick(ends: Ends | None, starts: Starts) -> str:
    places = count()
    picked = re.sub("%s", lambda _: f"%(pick_{next(places)})s", starts.pick)
    if ends is not None:
        picked = f"SELECT * FROM ({picked}) p WHERE (SELECT count(*) FROM held) >= 0"
    return f"pick AS MATERIALIZED ({picked})"


def _change(ends: Ends | None, starts: Starts | None) -> str:
    """What is to become of which job; one to start has a slot."""
    sides = []
    if ends is not None:
        sides.append(f"SELECT id, token, status, reason, NULL::bigint AS slot, {', '.join(_OF_ENDS)} FROM given")
    if starts is not None:
        none = "".join(f", NULL::{_SAID[name]} AS {name}" for name in _OF_ENDS) if ends is not None else ""
        slot = "1::bigint" if starts.one else "row_number() OVER (ORDER BY priority DESC, position, created_at, id)"
        sides.append(f"""
        SELECT id, gen_random_uuid() AS token, 'RUNNING' AS status, '' AS reason, {slot} AS slot{none}
        FROM pick WHERE {starts.clauses.guard or "true"}""")
    return f"change AS ({' UNION ALL '.join(sides)})"


def _moved(ends: Ends | None, starts: Starts | None) -> str:
    ids = ["%(ids)s::uuid[]"] if ends is not None else []
    ids += ["ARRAY(SELECT id FROM pick)"] if starts is not None else []  # an array makes it an index walk at any size
    said = [f"c.{name}" for name in _OF_ENDS] if ends is not None else []
    said += ["(c.retry_in IS NOT NULL AND NOT j.cancel_requested) AS retried"] if ends is not None else []
    returned = ["c.token", "c.reason", "c.slot", "j.status", *said, *(f"j.{name}" for name in _returned(ends, starts))]
    return f"""
    moved AS (
        UPDATE jobscheduler_job j SET status = c.status, status_reason = c.reason, gate = 0, {_assigned(ends, starts)}
        FROM change c WHERE j.id = ANY({" || ".join(ids)}) AND j.id = c.id
          AND {_either("true", "j.lease_token = c.token", ends, starts)}
        RETURNING {", ".join(returned)}
    )"""


def _assigned(ends: Ends | None, starts: Starts | None) -> str:
    names = dict.fromkeys([*(_ENDED if ends is not None else ()), *(_TAKEN if starts is not None else ())])
    values = {name: (_TAKEN.get(name, f"j.{name}"), _ENDED.get(name, f"j.{name}")) for name in names}
    return ", ".join(f"{name} = {_either(*sides, ends, starts)}" for name, sides in values.items())


def _either(taken: str, ended: str, ends: Ends | None, starts: Starts | None) -> str:
    if ends is None or starts is None:
        return taken if ends is None else ended
    return f"CASE WHEN c.slot IS NULL THEN {ended} ELSE {taken} END"


def _returned(ends: Ends | None, starts: Starts | None) -> list[str]:
    """The columns of a job that anything after its move needs, as they are under its lock."""
    names: list[str] = []
    if starts is not None:
        names += [*CLAIMED, *(CLAIM_TOLD if starts.clauses.along else ())]
    if ends is not None:
        names += ["id", "job_type", "tenant", "resource", "lane_id", "group_id", "created_at"]
        names += ["base_priority", "position", "attempt", "checkpoint", *SUBMISSION] if ends.retries else []
    return list(dict.fromkeys(names))


_BEGUN = f"""
    begun AS (
        INSERT INTO jobscheduler_jobrun (job_id, status, started_at, error, artifacts, worker)
        SELECT id, 'RUNNING', {NOW}, '', '{{}}', %(worker)s FROM took ON CONFLICT (job_id) DO NOTHING
    )"""
_RUN = f"""
    run AS (
        UPDATE jobscheduler_jobrun r
        SET status = e.status, finished_at = {NOW}, exit_code = e.exit_code, error = e.error, artifacts = e.artifacts
        FROM ended e WHERE r.job_id = ANY(%(ids)s::uuid[]) AND r.job_id = e.id
        RETURNING e.tenant, e.resource, e.job_type, e.status AS outcome, e.retried::integer AS retried,
                  CASE WHEN e.data->>'cause' IN ('LEASE_EXPIRED', 'CRASH_RECOVERY') THEN 1 ELSE 0 END AS recovered,
                  greatest(extract(epoch FROM r.started_at - e.created_at), 0) AS waited,
                  greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran
    )"""
_RETRY = f"""
    retry AS (
        INSERT INTO jobscheduler_job (id, {", ".join(SUBMISSION)}, status, gate, priority, position, created_at, not_before,
                                      hold, holds_lane, idempotency_hash, retry_of_id, attempt, checkpoint, {", ".join(BLANK)})
        SELECT retry_id, {", ".join(SUBMISSION)}, 'QUEUED', 1, base_priority, position, {NOW},
               {NOW} + retry_in * interval '1 second', false, lane_id IS NOT NULL, '', id, attempt + 1, checkpoint,
               {", ".join(BLANK.values())}
        FROM ended WHERE retried
        ON CONFLICT (retry_of_id) WHERE retry_of_id IS NOT NULL DO NOTHING
        RETURNING id, retry_of_id
    )"""
_MARK = """
    mark AS (
        INSERT INTO jobscheduler_lanemark (lane_id)
        SELECT DISTINCT lane_id FROM ended WHERE lane_id IS NOT NULL AND status <> 'FAILED'
    )"""


def _minute(ends: Ends) -> str:
    """Ends are added up before they are added to their minute, unless there is one only."""
    sums = ["1", "waited", "ran", "retried", "recovered"]
    if not ends.one:
        sums = ["count(*)", *(f"sum({name})" for name in sums[1:])]
    order = "" if ends.one else "GROUP BY 3, 4, 5, 6, 7, 8 ORDER BY 3, 4, 5, 6, 7, 8"
    return f"""
    minute AS (
        {INTO}
        SELECT date_trunc('minute', {NOW}), %(writer)s, tenant, resource, job_type, outcome,
               width_bucket(waited, {BUCKETS}), width_bucket(ran, {BUCKETS}), {", ".join(sums)}
        FROM run {order}
        {ADD_UP}
    )"""


def _event(ends: Ends | None, starts: Starts | None) -> str:
    sides = {"'QUEUED'": "'RUNNING'", "NULL::uuid": "token", "'worker'": "%(actor_kind)s", "%(worker)s": "%(actor)s"}
    source, token, *signature = (_either(*side, ends, starts) for side in sides.items())
    data = "data" if ends is not None else "NULL::jsonb"
    told = f"SELECT id, status, {source}, status, reason, {token}, {data}, {', '.join(signature)} FROM moved c"
    if ends is not None and ends.retries:
        made, why = "jsonb_build_object('retried_by', id)", "'retry of ' || retry_of_id"
        signed = "%(actor_kind)s, %(actor)s"
        told += f"""
        UNION ALL SELECT retry_of_id, 'RETRY_CREATED', 'FAILED', 'FAILED', '', NULL, {made}, {signed} FROM retry
        UNION ALL SELECT id, 'SUBMITTED', '', 'QUEUED', {why}, NULL, NULL, {signed} FROM retry"""
    return f"""
    event AS (
        INSERT INTO jobscheduler_jobevent
               (job_id, kind, from_status, to_status, reason, token, data, actor_kind, actor_name, at)
        SELECT t.*, {NOW} FROM ({told}) t
    )"""


def _answer(ends: Ends | None, starts: Starts | None) -> str:
    if ends is None:
        return f"SELECT {', '.join(CLAIMED)}, {KEPT_ARTIFACTS} FROM took"
    if starts is None:
        return _VERDICTS
    taken = [f"CASE WHEN slot IS NOT NULL THEN {name} END" if name in LARGE else name for name in CLAIMED]
    return f"""
    SELECT slot IS NULL, CASE WHEN retried THEN retry_id END, {", ".join(taken)},
           CASE WHEN slot IS NOT NULL THEN {KEPT_ARTIFACTS} END
    FROM moved took"""


_VERDICTS = """
    SELECT g.id,
           CASE WHEN e.id IS NOT NULL THEN 'done'
                WHEN (SELECT true FROM jobscheduler_jobevent x WHERE x.job_id = g.id AND x.token = g.token AND x.kind = g.status
                        AND x.actor_kind = %(actor_kind)s AND x.actor_name = %(actor)s LIMIT 1) THEN 'replay' -- EXISTS may hash all events
                ELSE 'lost' END,
           e.tenant, CASE WHEN e.retried THEN e.retry_id END, e.group_id IS NOT NULL
    FROM given g LEFT JOIN ended e ON e.id = g.id
    """
