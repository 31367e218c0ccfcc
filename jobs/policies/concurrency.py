"""How many jobs may run at once, by what they are.

Policies are asked under the lock of the limits, so whatever they say holds exactly. `Limits` is the built-in one; the
others can be combined: `CONCURRENCY_POLICY` may name a function that returns `GlobalLimit() & PerTypeLimit(default=2)`.
"""

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
    """`max` None: unlimited; `paused`: nothing starts, whatever the maximum; `reserved`: a direct call has the next
    slot, so the queue finds none."""

    scope: str
    key: str
    max: int | None
    paused: bool = False
    reserved: bool = False

    def names(self, flow: Flow) -> bool:
        return self.key == flow.key(self.scope)

    @property
    def is_shut(self) -> bool:
        return self.paused or self.reserved


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
            if limit.names(flow) and room(limit, in_use) == 0:
                return Blocked(limit, in_use.of(limit))
        return None


class Combinable:
    """Two policies joined by `&`: both must find room."""

    def __and__(self, other: ConcurrencyPolicy) -> Combined:
        return Combined(self, other)

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        raise NotImplementedError


class Combined(Combinable):
    """Every one of its policies must find room."""

    def __init__(self, *policies: ConcurrencyPolicy) -> None:
        self.policies = policies

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        for policy in self.policies:
            if (blocked := policy.blocked(flow, limits, in_use)) is not None:
                return blocked
        return None


class ScopeLimit(Combinable):
    """The limits of one scope, as the settings and the operator set them; `default` is for keys that have none.

    Flows without a key in the scope (jobs of no addon) are not limited by it. The global limit always has a row: one
    that says nothing leaves it to `default`.
    """

    scope = "global"

    def __init__(self, default: int | None = None) -> None:
        self.default = default

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        key = flow.key(self.scope)
        if not key and self.scope != "global":
            return None
        named = (limit for limit in limits if (limit.scope, limit.key) == (self.scope, key))
        limit = next(named, None)
        if limit is None or not (limit.key or limit.max is not None or limit.is_shut):
            limit = Limit(self.scope, key, self.default)
        return Blocked(limit, in_use.of(limit)) if room(limit, in_use) == 0 else None


class GlobalLimit(ScopeLimit):
    scope = "global"


class PerTypeLimit(ScopeLimit):
    scope = "job_type"


class PerResourceLimit(ScopeLimit):
    scope = "resource"


class PerTenantLimit(ScopeLimit):
    scope = "tenant"


class PerAddonLimit(ScopeLimit):
    scope = "addon"


def room(limit: Limit, in_use: InUse) -> int | None:
    """How many more may start under this limit; None: any number."""
    if limit.is_shut:
        return 0
    return None if limit.max is None else max(0, limit.max - in_use.of(limit))
