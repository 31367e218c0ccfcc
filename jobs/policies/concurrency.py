"""How many jobs may run at once, by what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

SCOPES = ("global", "job_type", "resource", "tenant", "addon")


@dataclass(frozen=True)
class Flow:
    """Jobs of one flow fall under the same limits."""

    tenant: str
    job_type: str
    resource: str
    addon_id: str

    def key(self, scope: str) -> str:
        """What this flow is called within a scope."""
        if scope == "global":
            return ""
        return self.addon_id if scope == "addon" else str(getattr(self, scope))


@dataclass(frozen=True)
class Limit:
    """`max` None: unlimited; `paused`: nothing starts, whatever the maximum."""

    scope: str
    key: str
    max: int | None
    paused: bool = False


@dataclass(frozen=True)
class Blocked:
    limit: Limit
    in_use: int


class InUse:
    """How many jobs are active, counted by every scope at once."""

    def __init__(self, active: Iterable[tuple[Flow, int]] = ()) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        for flow, jobs in active:
            self.add(flow, jobs)

    def add(self, flow: Flow, jobs: int = 1) -> None:
        for scope in SCOPES:
            self._counts[scope, flow.key(scope)] += jobs

    def of(self, limit: Limit) -> int:
        return self._counts[limit.scope, limit.key]


class ConcurrencyPolicy(Protocol):
    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        """The limit that stands in the way of one more job of this flow, or None."""


class Limits:
    """Every limit that names the flow must have room: global, per type, per resource, per tenant, per addon."""

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        for limit in limits:
            if limit.key == flow.key(limit.scope) and _is_full(limit, in_use):
                return Blocked(limit, in_use.of(limit))
        return None


def _is_full(limit: Limit, in_use: InUse) -> bool:
    return limit.paused or (limit.max is not None and in_use.of(limit) >= limit.max)


def room(limit: Limit, in_use: InUse) -> int | None:
    """How many more may start under this limit; None: any number."""
    if limit.paused:
        return 0
    return None if limit.max is None else max(0, limit.max - in_use.of(limit))
