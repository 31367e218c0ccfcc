"""Which ready jobs start next: greedy, in order, within every limit and with everybody's consent.

Called under the lock of the limits. Whoever starts jobs chooses here: workers, and offers to remote ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import UUID

from jobs.conf import conf
from jobs.engine.sql import dialect
from jobs.policies.concurrency import Blocked, Flow, InUse, Limit, room

WINDOW = 1000  # how many ready jobs are looked at before the walk over flows begins
PATIENCE = 1000  # how many are asked about in one round
ASKED_AT_ONCE = 50  # where a doorman may refuse any of them

Condition = tuple[str, Sequence[Any]]  # SQL and its parameters; the empty one says nothing
Look = Callable[[int, Sequence[Limit]], list[tuple[UUID, Flow]]]  # so many of the first ones, but of no closed limit


class Doorman(Protocol):
    """Whose consent each job needs besides the limits."""

    def look_at(self, ids: Sequence[UUID]) -> None: ...

    def admits(self, job_id: UUID) -> bool: ...


def choose(
    most: int, look: Look, in_force: Sequence[Limit], in_use: InUse, doorman: Doorman | None = None
) -> list[UUID]:
    """A limit that fills up closes its flows, and the walk goes on without them; so does a job that is not admitted."""
    policy = conf.policy("CONCURRENCY_POLICY")
    closed = [limit for limit in in_force if room(limit, in_use) == 0]
    chosen: list[UUID] = []
    seen: set[UUID] = set()
    while len(chosen) < most and len(seen) < PATIENCE:
        found = look(min(most + 2 * len(seen) + (ASKED_AT_ONCE if doorman else 0), most + PATIENCE), closed)
        new = [each for each in found if each[0] not in seen]
        if doorman is not None:
            doorman.look_at([job_id for job_id, _ in new])
        refused = False
        for job_id, flow in new:
            if len(chosen) == most:
                break
            seen.add(job_id)
            blocked: Blocked | None = policy.blocked(flow, in_force, in_use)
            if blocked is not None:
                closed.append(blocked.limit)
            if blocked is not None or (doorman is not None and not doorman.admits(job_id)):
                refused = True
                continue
            chosen.append(job_id)
            in_use.add(flow)
        if not refused:
            break
    return chosen


def candidates(connection: Any, wanted: Condition, *, remote: bool = False, along: Condition = ("", ())) -> Look:
    """Ready jobs of open flows, in dispatch order: from a window first; from the heads of flows if that is short.

    The window lies `along` an index; `wanted` is what is judged row by row.
    """

    def look(most: int, closed: Sequence[Limit]) -> list[tuple[UUID, Flow]]:
        conditions, params = joined(along, wanted, open_flows(closed))
        which = joined(("remote" if remote else "NOT remote", ()), along)[0]
        with connection.cursor() as cursor:
            cursor.execute(_WINDOW.format(which=which, conditions=conditions, most=most), [*along[1], *params])
            rows = cursor.fetchall()
        if len(rows) < most:
            rows = dialect(connection).pick_heads(connection, conditions, params, most, remote=remote)
        return [(as_uuid(row[0]), Flow(*row[1:])) for row in rows]

    return look


_WINDOW = f"""
    SELECT id, tenant, job_type, resource, addon_id FROM (
        SELECT id, tenant, job_type, resource, addon_id FROM jobscheduler_job WHERE gate = 3 AND {{which}}
        ORDER BY priority DESC, position, created_at, id LIMIT {WINDOW}
    ) near WHERE {{conditions}} LIMIT {{most:d}}
"""


def open_flows(closed: Sequence[Limit]) -> Condition:
    """SQL for: a flow that no closed limit names."""
    clauses: list[str] = []
    params: list[str] = []
    for limit in dict.fromkeys(closed):
        if limit.scope == "global":
            clauses.append("1 = 0")
        elif limit.scope in _COLUMN:
            clauses.append(f"{_COLUMN[limit.scope]} <> %s")
            params.append(limit.key)
    return " AND ".join(clauses), params


def joined(*conditions: Condition) -> Condition:
    """All of them; an empty one says nothing."""
    said = [each for each in conditions if each[0]]
    return " AND ".join(sql for sql, _ in said), [value for _, params in said for value in params]


def as_uuid(stored: Any) -> UUID:
    return stored if isinstance(stored, UUID) else UUID(hex=stored)


_COLUMN = {"job_type": "job_type", "resource": "resource", "tenant": "tenant", "addon": "addon_id"}
