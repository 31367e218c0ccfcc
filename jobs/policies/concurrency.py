"""Decide how many jobs may run at once, and start in a time: in total, by job type, resource, tenant and addon.

A policy is called under the lock of the limits, so its decision holds exactly. `Limits` is the built-in one; the others
can be combined: `CONCURRENCY_POLICY` may name a function that returns `GlobalLimit() & PerTypeLimit(default=2)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from jobs.rates import Buckets

NO_BUCKETS = Buckets()
SCOPE_COLUMNS = {"job_type": "job_type", "resource": "resource", "tenant": "tenant", "addon": "addon_id"}
SCOPES = ("global", *SCOPE_COLUMNS)


@dataclass(frozen=True)
class Flow:
    """The fields of a job that limits refer to. Jobs with the same flow have the same limits."""

    tenant: str
    job_type: str
    resource: str
    addon_id: str

    @classmethod
    def of(cls, row: Any) -> Flow:
        """Return the flow of a job, a lease, or another row with these columns."""
        return cls(row.tenant, row.job_type, row.resource, row.addon_id)

    def key(self, scope: str) -> str:
        """Return the key of this flow within a scope."""
        return "" if scope == "global" else str(getattr(self, SCOPE_COLUMNS[scope]))


@dataclass(frozen=True)
class Limit:
    """One limit.

    `max`: None is unlimited. `paused`: no job starts, whatever the maximum. `reserved`: the next slot is reserved for a
    direct call, so no job of the queue starts. `buckets`: of its rates, before the starts of this round.
    """

    scope: str
    key: str
    max: int | None
    paused: bool = False
    reserved: bool = False
    buckets: Buckets = NO_BUCKETS

    def names(self, flow: Flow) -> bool:
        """Return whether jobs of this flow are under this limit."""
        return self.key == flow.key(self.scope)

    @property
    def is_closed(self) -> bool:
        return self.paused or self.reserved

    @property
    def is_in_force(self) -> bool:
        return self.is_closed or self.max is not None or self.buckets != NO_BUCKETS


@dataclass(frozen=True)
class Blocked:
    limit: Limit
    in_use: int


class InUse:
    """The number of active jobs for each key of each scope; of these, the ones that this round starts."""

    def __init__(self, active: Iterable[tuple[Flow, int]] = ()) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._started: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        for flow, jobs in active:
            for scope in SCOPES:
                self._counts[scope, flow.key(scope)] += jobs

    def add(self, flow: Flow, tokens: int = 0) -> None:
        """Add one job that starts now, and reserves so many tokens."""
        for scope in SCOPES:
            key = scope, flow.key(scope)
            self._counts[key] += 1
            self._started[key] += 1
            self._tokens[key] += tokens

    def of(self, limit: Limit) -> int:
        """Return the number of active jobs under a limit."""
        return self._counts[limit.scope, limit.key]

    def count_started(self, limit: Limit) -> int:
        """Return the number of jobs that this round starts under a limit."""
        return self._started[limit.scope, limit.key]

    def count_tokens(self, limit: Limit) -> int:
        """Return the tokens that the jobs of this round reserve under a limit."""
        return self._tokens[limit.scope, limit.key]


class ConcurrencyPolicy(Protocol):
    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        """Return the limit that prevents one more job of this flow, or None."""


class Limits:
    """Require a free slot under every limit of the flow: global, per type, per resource, per tenant, per addon."""

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        for limit in limits:
            if limit.names(flow) and count_free(limit, in_use) == 0:
                return Blocked(limit, in_use.of(limit))
        return None


class Combinable:
    """A policy that can be combined with another by `&`."""

    def __and__(self, other: ConcurrencyPolicy) -> Combined:
        return Combined(self, other)

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        raise NotImplementedError


class Combined(Combinable):
    """Several policies, none of which may block."""

    def __init__(self, *policies: ConcurrencyPolicy) -> None:
        self.policies = policies

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        for policy in self.policies:
            if (blocked := policy.blocked(flow, limits, in_use)) is not None:
                return blocked
        return None


class ScopeLimit(Combinable):
    """The limits of one scope, from the settings and the operator; `default` applies to keys without a limit.

    Flows without a key in the scope (jobs of no addon) are not limited by it. The global limit always has a row;
    `default` applies if that row has no maximum.
    """

    scope = "global"

    def __init__(self, default: int | None = None) -> None:
        self.default = default

    def blocked(self, flow: Flow, limits: Sequence[Limit], in_use: InUse) -> Blocked | None:
        key = flow.key(self.scope)
        if not key and self.scope != "global":
            return None
        limit = next((limit for limit in limits if (limit.scope, limit.key) == (self.scope, key)), None)
        if limit is None:
            limit = Limit(self.scope, key, self.default)
        elif not limit.key and limit.max is None:
            limit = replace(limit, max=self.default)
        return Blocked(limit, in_use.of(limit)) if count_free(limit, in_use) == 0 else None


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


def count_free(limit: Limit, in_use: InUse) -> int | None:
    """Return how many more jobs may start under this limit; None: any number."""
    if limit.is_closed or is_waiting_for_tokens(limit, in_use):
        return 0
    counts = [] if limit.max is None else [limit.max - in_use.of(limit)]
    if (starts := limit.buckets.starts) is not None:
        counts.append(starts.count_whole() - in_use.count_started(limit))
    return max(0, min(counts)) if counts else None


def is_waiting_for_tokens(limit: Limit, in_use: InUse) -> bool:
    """Return whether the tokens that were used and reserved exceed the token rate."""
    return limit.buckets.tokens is not None and not limit.buckets.tokens.holds(in_use.count_tokens(limit))


def seconds_to_start(limit: Limit, in_use: InUse) -> float:
    """Return the seconds until the rates of this limit let one more job start; 0: now."""
    return limit.buckets.seconds_to_start(in_use.count_started(limit), in_use.count_tokens(limit))
