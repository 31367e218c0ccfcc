"""The next slot for a direct call: what runs goes on, the queue waits, direct calls keep their order.

A reservation is a lease. While it waits, the limits its type falls under have no room for the queue; it is granted
under the same lock that claims count under, so limits hold exactly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db
from jobs.conf import conf
from jobs.engine.notifications import CHANNEL, Listener
from jobs.engine.process_identity import Identity
from jobs.engine.selection import admission, limits
from jobs.engine.slots import leases
from jobs.engine.slots.leases import ROOM
from jobs.errors import InvalidOperationError, NoSlot
from jobs.models import Lease, LeaseKind
from jobs.policies.admission import Candidate, Denied
from jobs.policies.concurrency import Flow, Limit

FIRST_LOOK_SEC, LAST_LOOK_SEC = 0.02, 0.5


@dataclass(frozen=True)
class Obstacle:
    """What a direct call waits for, in words; `for_good` if waiting will not help."""

    message: str
    for_good: bool = False


def reserve(candidate: Candidate, owner: str) -> Lease:
    """Stand in line, or take a slot at once. Others must see it: not inside a transaction."""
    with _durable():
        limits.ensure()
        lease = leases.lease_for(candidate, LeaseKind.DIRECT, owner)
        lease.process = Identity.mine().slot(0)[:300]
        obstacle = _obstacle(lease, lock=True)
        if obstacle is not None and obstacle.for_good:
            raise NoSlot(obstacle.message)
        return leases.store(lease, **({"granted_at": Now()} if obstacle is None else {}))


def try_grant(lease: Lease) -> Obstacle | None:
    """Take the slot if it is this one's turn; else what it waits for. Looks before it locks."""
    obstacle = _obstacle(lease, lock=False)
    if obstacle is not None:
        return obstacle
    with _durable():
        obstacle = _obstacle(lease, lock=True)
        if obstacle is None and not leases.live().filter(pk=lease.pk).update(granted_at=Now()):
            return Obstacle(_("The reservation was lost: it was not renewed in time."), for_good=True)
    return obstacle


def flow_of(lease: Lease) -> Flow:
    return Flow(lease.tenant, lease.job_type, lease.resource, lease.addon_id)


def _obstacle(lease: Lease, *, lock: bool) -> Obstacle | None:
    found = limits.survey(lock=lock)
    mine = flow_of(lease)
    for limit in found.limits:
        if limit.paused and limit.names(mine):
            return Obstacle(_("“%s” is paused.") % _named(limit), for_good=True)
    line = list(takewhile(lambda other: other.pk != lease.pk, _waiting())) if found.waiting else []
    blocked = _walk([*map(flow_of, line), mine], found)
    if blocked is not None:
        return blocked
    return _not_admitted(lease, line) if lock else None


def _walk(line: Sequence[Flow], found: limits.Survey) -> Obstacle | None:
    """Let those in line take their slots in order, in thought; what stands in the way of the last one."""
    policy = conf.policy("CONCURRENCY_POLICY")
    bounds = [limit for limit in found.limits if limit.max is not None]
    held_back: list[Flow] = []
    obstacle: Obstacle | None = None
    for flow in line:
        blocked = policy.blocked(flow, found.limits, found.in_use)
        behind = any(limit.names(flow) and limit.names(other) for limit in bounds for other in held_back)
        obstacle = None
        if blocked is not None:
            obstacle = Obstacle(_("“%s” has no free slot.") % _named(blocked.limit))
        elif behind:
            obstacle = Obstacle(_("Another direct call goes first."))
        if obstacle is None:
            found.in_use.add(flow)
        else:
            held_back.append(flow)
    return obstacle


def _not_admitted(lease: Lease, line: Sequence[Lease]) -> Obstacle | None:
    """Ask admission, where it is not open to all. What waits is counted as reserved: one's own, and what is behind."""
    if admission.is_open():
        return None
    asking = admission.AdmissionRound()
    ahead = {other.pk for other in line}
    for other in _waiting():
        if other.pk not in ahead:
            asking.forgive(other.addon_id, other.cost_units)
    verdict = asking.decide(leases.candidate_of(lease))
    return Obstacle(verdict.reason) if isinstance(verdict, Denied) else None


def _waiting() -> Sequence[Lease]:
    waiting = leases.live().filter(kind=LeaseKind.DIRECT, granted_at__isnull=True)
    return list(waiting.order_by("requested_at", "pk"))


def _named(limit: Limit) -> str:
    return f"{limit.scope} {limit.key}".strip()


def _durable() -> AbstractContextManager[Any]:
    connection = db.connection()
    inside = [each for each in connection.atomic_blocks if not getattr(each, "_from_testcase", False)]
    if inside:
        raise InvalidOperationError(_("A direct call cannot wait for its turn inside a transaction of its caller."))
    return db.atomic(read_committed=True)


class Ear:
    """How a direct call waits for its turn: it listens where the database tells, and looks again now and then anyway.

    On the caller's own connection, if it is in no transaction; elsewhere it only waits, longer each time.
    """

    def __init__(self) -> None:
        self._connection: Any = db.connection()
        self._listens = Listener.is_possible() and not self._connection.in_atomic_block
        self._pause = FIRST_LOOK_SEC

    def __enter__(self) -> Ear:
        self._say("LISTEN")
        return self

    def __exit__(self, *raised: object) -> None:
        if self._listens and self._connection.connection is not None and self._connection.is_usable():
            self._say("UNLISTEN")

    def wait(self, seconds: float) -> None:
        """Until there may be room, or it is time to look."""
        seconds = min(seconds, conf.POLL_SEC)
        if not self._listens:
            time.sleep(min(seconds, self._pause))
            self._pause = min(self._pause * 1.5, LAST_LOOK_SEC)
            return
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with self._connection.wrap_database_errors:
                for note in self._connection.connection.notifies(timeout=left, stop_after=1):
                    if note.payload == ROOM:
                        return

    def _say(self, verb: str) -> None:
        if self._listens:
            with self._connection.cursor() as cursor:
                cursor.execute(f"{verb} {CHANNEL}")
