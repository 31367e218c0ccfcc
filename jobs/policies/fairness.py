"""Priority aging and fair shares. Opt-in: without a policy the dispatch order is strict (INV-004).

`FAIRNESS_POLICY` names a class, or a function that returns an instance: `def fairness(): return Aging(step=10)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from jobs.policies.concurrency import Flow

MAX_PRIORITY = 100
MIN_WEIGHT = 1e-6


@dataclass(frozen=True)
class Waiting:
    """A job that could start. `waited_sec` counts from its insert, or from its `not_before` if that is later."""

    flow: Flow
    base_priority: int
    priority: int
    waited_sec: float


@dataclass(frozen=True)
class Share:
    """The share that a job is counted for. Of two shares with jobs, one of twice the weight starts twice as many."""

    key: str
    weight: float = 1.0


class FairnessPolicy(Protocol):
    """A policy of both. `shares`: whether `share` is called at all, which costs each claim a scan over all flows."""

    shares: bool

    def aged(self, waiting: Waiting) -> int:
        """Return the priority that this job should have by now; a lower one is ignored."""

    def share(self, flow: Flow) -> Share:
        """Return the share of a flow; within one priority, shares take turns."""


class Strict:
    """The base class: neither aging nor fair shares."""

    shares = False

    def aged(self, waiting: Waiting) -> int:
        return waiting.priority

    def share(self, flow: Flow) -> Share:
        return Share("")


@dataclass(frozen=True)
class Aging(Strict):
    """Raise the priority of a waiting job by `step` every `every_sec`, up to `ceiling`.

    A job of priority p reaches the ceiling after (ceiling - p) / step x every_sec; from then on only jobs that were
    submitted before it go first.
    """

    step: int = 5
    every_sec: float = 60.0
    ceiling: int = MAX_PRIORITY

    def aged(self, waiting: Waiting) -> int:
        steps = int(max(waiting.waited_sec, 0.0) / self.every_sec)
        return max(waiting.priority, min(waiting.base_priority + steps * self.step, self.ceiling))


@dataclass(frozen=True)
class FairShare(Strict):
    """Let addons (or tenants) take turns within one priority, by their weights; the default weight is 1."""

    among: Literal["addon", "tenant"] = "addon"
    weights: Mapping[str, float] = field(default_factory=dict)

    shares = True

    def share(self, flow: Flow) -> Share:
        key = flow.key(self.among)
        return Share(f"{self.among}:{key}", max(self.weights.get(key, 1.0), MIN_WEIGHT))


@dataclass(frozen=True)
class AgingFairShare(FairShare):
    """Combine both: priorities rise, and within one priority the shares take turns."""

    aging: Aging = field(default_factory=Aging)

    def aged(self, waiting: Waiting) -> int:
        return self.aging.aged(waiting)
