"""One round of choosing, with whatever is switched on: limits always, admission and fair shares where they are set.

In the transaction that starts what was chosen: lock the limits, make a `Round`, `choose`, lock the chosen jobs,
`settle` for those that could be had, and start them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobs.actors import SCHEDULER
from jobs.engine import doorman, shares
from jobs.engine.choosing import Condition, candidates, choose, joined
from jobs.engine.limits import has_builtin_policy
from jobs.models import JobEvent
from jobs.policies.concurrency import InUse, Limit
from jobs.states import EventKind, Status


def is_plain() -> bool:
    """Whether only the limits, and they as they are, decide on what starts."""
    return has_builtin_policy() and doorman.is_open() and not shares.are_on()


class Round:
    def __init__(
        self, connection: Any, wanted: Condition, *, remote: bool = False, along: Condition = ("", ())
    ) -> None:
        self._door = None if doorman.is_open() else doorman.Round()
        self._turns = shares.Turns(connection, joined(along, wanted), remote=remote) if shares.are_on() else None
        self._look = self._turns.look if self._turns else candidates(connection, wanted, remote=remote, along=along)
        self.used = self._door.used if self._door else 0

    @property
    def has_denied(self) -> bool:
        return self._door is not None and bool(self._door.denied)

    def choose(self, most: int, in_force: Sequence[Limit], in_use: InUse) -> list[UUID]:
        return choose(most, self._look, in_force, in_use, self._door)

    def settle(self, taken: Sequence[UUID]) -> None:
        """Write what was decided; these are about to start."""
        reasons = {} if self._turns is None else self._turns.settle(taken)
        if self._door is not None:
            self._door.record({job_id: reasons.get(job_id, "") for job_id in taken})
        else:
            _record(reasons)


def _record(reasons: dict[UUID, str]) -> None:
    told = {"kind": EventKind.ADMITTED, "from_status": Status.QUEUED, "to_status": Status.QUEUED}
    who = {"actor_kind": SCHEDULER.kind, "actor_name": SCHEDULER.name}
    events = [JobEvent(job_id=job_id, reason=reason, **told, **who) for job_id, reason in reasons.items()]
    if events:
        JobEvent.objects.bulk_create(events)
