"""The one place where workers race: limits, order, leases.

Limit rows are locked first (waiting), then jobs (skipping what others hold). The count of what is active is read
after the lock: in the same statement it would be older than the lock, and limits would be exceeded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Exists, Q

from jobs import db, hooks
from jobs.engine import contracts, deadlines, dispatching, groups, limits, wakeup
from jobs.engine.choosing import Condition, Look, candidates, choose
from jobs.engine.limits import has_builtin_policy
from jobs.engine.sql import Statement, compiled, dialect
from jobs.models import ConcurrencyLimit, Job
from jobs.models.job import JobQuerySet
from jobs.policies.concurrency import InUse, Limit, room
from jobs.states import EventKind, Status

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 25, 50, 100, 200, 500)


@dataclass(frozen=True)
class Serves:
    """What a worker takes. Its types are those it has handlers for, unless it was told fewer."""

    types: tuple[str, ...]
    resources: tuple[str, ...] | None = None
    tenant: str | None = None
    choosy: bool = False  # others' jobs may stand before ours: do not walk past them one by one

    def condition(self) -> Q:
        wanted = Q(job_type__in=self.types)
        if self.resources is not None:
            wanted &= Q(resource__in=self.resources)
        return wanted & Q(tenant=self.tenant) if self.tenant is not None else wanted


class Claim(NamedTuple):
    """A job as its executor gets it: what to run, and the lease to run it under. CLAIMED, and the run's artifacts."""

    id: UUID
    lease_token: UUID
    lease_owner: str
    job_type: str
    params: dict[str, Any]
    tenant: str
    target: str | None
    resource: str
    attempt: int
    fence: int
    max_retries: int
    retry_policy: dict[str, Any]
    max_runtime_sec: float | None
    token_limit: int | None
    tokens_used: int
    checkpoint: Any
    group_id: UUID | None
    retry_of_id: UUID | None
    traceparent: str | None
    artifacts: dict[str, Any]


class Claimer:
    """Takes jobs for one worker. It remembers whether limits are in force, to spare asking; it never trusts that."""

    def __init__(self, worker: str, serves: Serves, life: str | None = None) -> None:
        self.worker = worker
        self.life = worker if life is None else life  # the worker with its incarnation; leases are in its name
        self.serves = serves
        self.saturated = False  # some limit had no room left, or somebody was not admitted
        self._limited = True
        self.denied = False  # somebody was not admitted
        self._used = 0  # cost units, when admission was last asked

    def claim(self, slots: Sequence[int], *, lease_sec: float) -> list[Claim]:
        """Take up to one job per slot number, in dispatch order, within every limit."""
        most = batch_size(len(slots))
        if not most or not self.serves.types:
            return []
        return _started(self._claim(most, slots, lease_sec))

    def parts(self, slots: Sequence[int], *, lease_sec: float) -> Any:
        """The claim, to be made one with the end of other jobs: while no limit is in force and no hook wants a call."""
        most = batch_size(len(slots))
        if not most or not self.serves.types or self._limited or not self._is_plain():
            return None
        connection = db.connection()
        clauses = None if connection.vendor == "sqlite" else hooks.for_claims()
        if clauses is None:
            return None
        pick = _unlimited(most, self.serves)
        return dialect(connection).a_claim(*pick, self.life, slots, self.worker, lease_sec, clauses)

    def taken(self, rows: Sequence[Any]) -> list[Claim]:
        """What that answered."""
        return _started([_claim(row) for row in rows])

    def _is_plain(self) -> bool:
        return not self.serves.choosy and dispatching.is_plain()

    def _claim(self, most: int, slots: Sequence[int], lease_sec: float) -> list[Claim]:
        plain = self._is_plain()
        if not self._limited and plain:
            claims = self._take(_unlimited(most, self.serves), slots, lease_sec)
            if claims or not limits.are_in_force():
                self.saturated = False
                return claims
        with db.atomic() as connection:
            in_force, in_use = limits.locked(all_of_them=not has_builtin_policy())
            looked, self._limited = not self._limited and plain, bool(in_force) or not plain
            if looked and not self._limited:
                return []
            contracts.call_next(in_force, in_use)
            self.denied = False
            if dispatching.is_plain():
                pick = _pick(connection, most, self.serves, in_force, in_use)
            else:
                pick = self._ask(connection, most, in_force, in_use)
            claims = self._take(pick, slots, lease_sec) if pick is not None else []
            full = any(room(limit, in_use) == 0 for limit in in_force if not limit.paused)
            self.saturated = full or self.denied
            return claims

    def _ask(self, connection: Any, most: int, in_force: Sequence[Limit], in_use: InUse) -> Statement | None:
        """As `_pick`, where admission or fairness have a say. What they decided is written in this transaction."""
        asking = dispatching.Round(connection, _served(self.serves))
        chosen = asking.choose(most, in_force, in_use)
        free = _locking(Job.objects.ready().filter(deadlines.in_time(), pk__in=chosen))
        held = [row["id"] for row in free] if chosen else []  # nobody can take them from us now
        asking.settle(held)
        self.denied = asking.has_denied
        if asking.used < self._used and not held:  # what came free may be for others
            wakeup.notify(wakeup.READY)
        self._used = asking.used
        return _by_id(held)

    def _take(self, pick: Statement, slots: Sequence[int], lease_sec: float) -> list[Claim]:
        said, connection = (*pick, self.life, slots, self.worker, lease_sec), db.connection()
        clauses = None if connection.vendor == "sqlite" else hooks.for_claims()
        if clauses is not None:
            rows = dialect(connection).claim_jobs(connection, *said, clauses)
            refused = not rows and bool(clauses.guard) and hooks.look_again(EventKind.RUNNING)
            return self._take(pick, slots, lease_sec) if refused else [_claim(row) for row in rows]
        with db.atomic():
            claims = [_claim(row) for row in dialect(connection).claim_jobs(connection, *said)]
            if hooks.anyone_listens():
                moves = [hooks.Moved(c.id, EventKind.RUNNING, Status.QUEUED, Status.RUNNING, c.tenant) for c in claims]
                hooks.tell(moves)
        return claims


def _started(claims: list[Claim]) -> list[Claim]:
    if groups_begun := {each.group_id for each in claims if each.group_id is not None}:
        groups.mark_started(groups_begun)
    return claims


def batch_size(free: int) -> int:
    """A few sizes only: the server plans a statement with a literal LIMIT well, and keeps each one prepared."""
    return max((size for size in BATCHES if size <= free), default=0)


def foreign_work(serves: Serves) -> bool:
    """Whether ready jobs that this worker does not serve are in the queue, where a plain walk would trip over them."""
    marks = ", ".join(["%s"] * len(serves.types))
    connection = db.connection()
    return bool(dialect(connection).pick_heads(connection, f"job_type NOT IN ({marks})", serves.types, 1))


def _pick(connection: Any, most: int, serves: Serves, in_force: Sequence[Limit], in_use: InUse) -> Statement | None:
    """A locking query for the rows to take, or None."""
    if not has_builtin_policy():
        return _by_id(choose(most, _candidates(connection, serves), in_force, in_use))
    if not in_force:
        return (
            _first(most, serves)
            if not serves.choosy
            else _by_id([job for job, _ in _candidates(connection, serves)(most, [])])
        )
    free = [room(limit, in_use) for limit in in_force if limit.scope == "global"]
    most = min([most, *(each for each in free if each is not None)])
    if most == 0:
        return None
    scoped = [limit for limit in in_force if limit.scope != "global"]
    if not serves.choosy and all((left := room(limit, in_use)) is None or left >= most for limit in scoped):
        return _first(most, serves)
    return _by_id(choose(most, _candidates(connection, serves), in_force, in_use))


@lru_cache(maxsize=256)
def _first(most: int, serves: Serves) -> Statement:
    """The first ready jobs: the plain walk along the dispatch order."""
    return compiled(_ready(serves)[:most])


@lru_cache(maxsize=256)
def _unlimited(most: int, serves: Serves) -> Statement:
    """The same, if no limit is in force at all."""
    in_force = ConcurrencyLimit.objects.filter(Q(max__isnull=False) | Q(paused=True))
    return compiled(_ready(serves).filter(~Exists(in_force))[:most])


def _by_id(ids: Sequence[UUID]) -> Statement | None:
    return compiled(_locking(Job.objects.ready().filter(deadlines.in_time(), pk__in=ids))) if ids else None


def _ready(serves: Serves) -> Any:
    return _locking(Job.objects.ready().filter(deadlines.in_time(), serves.condition()))


def _locking(jobs: JobQuerySet) -> Any:
    ordered = jobs.in_dispatch_order().select_for_update(skip_locked=True)
    return ordered.values("id", "priority", "position", "created_at")


def _candidates(connection: Any, serves: Serves) -> Look:
    return candidates(connection, _served(serves))


def _served(serves: Serves) -> Condition:
    clauses, params = [f"job_type IN ({_marks(serves.types)})"], [*serves.types]
    if serves.resources is not None:
        clauses.append(f"resource IN ({_marks(serves.resources)})")
        params += serves.resources
    if serves.tenant is not None:
        clauses.append("tenant = %s")
        params.append(serves.tenant)
    return " AND ".join(clauses), params


def _marks(values: Sequence[str]) -> str:
    return ", ".join(["%s"] * len(values))


_IN_JSON = [Claim._fields.index(name) for name in ("params", "retry_policy", "checkpoint", "artifacts")]


def _claim(row: Sequence[Any]) -> Claim:
    values = list(row)
    for place in _IN_JSON:
        values[place] = _parsed(values[place])
    values[-1] = values[-1] or {}
    return Claim._make(values)


def _parsed(text: str | None) -> Any:
    return {} if text == "{}" else None if text is None else json.loads(text)
