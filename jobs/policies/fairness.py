"""Who goes first, beyond priority and position. Opt-in: without a policy the dispatch order is strict (INV-004).

`FAIRNESS_POLICY` names a class, or a function that makes one: `def fairness(): return Aging(step=10, every_sec=30)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from jobs.policies.concurrency import Flow

HIGHEST = 100
LEAST_WEIGHT = 1e-6


@dataclass(frozen=True)
class Waiting:
    """A job that could run. `waited_sec` counts from its birth, or from its `not_before` if that came later."""

    flow: Flow
    base_priority: int
    priority: int
    waited_sec: float


@dataclass(frozen=True)
class Share:
    """Whose turn a job takes. Of two shares that both have work, the one of twice the weight starts twice as many."""

    key: str
    weight: float = 1.0


class FairnessPolicy(Protocol):
    """`shares` says whether `share` is worth asking at all: it costs a claim a walk over all flows."""

    shares: bool

    def aged(self, waiting: Waiting) -> int:
        """The priority that this job should have by now; it is never lowered."""

    def share(self, flow: Flow) -> Share:
        """Within one priority, shares take turns."""


class Strict:
    """Neither ages nor shares: what the others are made from."""

    shares = False

    def aged(self, waiting: Waiting) -> int:
        return waiting.priority

    def share(self, flow: Flow) -> Share:
        return Share("")


@dataclass(frozen=True)
class Aging(Strict):
    """A waiting job's priority rises by `step` every `every_sec`, up to `ceiling`.

    A job of priority p is at the ceiling after (ceiling - p) / step x every_sec; from then on only jobs that were
    submitted before it go first.
    """

    step: int = 5
    every_sec: float = 60.0
    ceiling: int = HIGHEST

    def aged(self, waiting: Waiting) -> int:
        steps = int(max(waiting.waited_sec, 0.0) / self.every_sec)
        return max(waiting.priority, min(waiting.base_priority + steps * self.step, self.ceiling))


@dataclass(frozen=True)
class FairShare(Strict):
    """Within one priority, addons (or tenants) take turns by their weights; who is not named weighs 1."""

    among: Literal["addon", "tenant"] = "addon"
    weights: Mapping[str, float] = field(default_factory=dict)

    shares = True

    def share(self, flow: Flow) -> Share:
        key = flow.key(self.among)
        return Share(f"{self.among}:{key}", max(self.weights.get(key, 1.0), LEAST_WEIGHT))


@dataclass(frozen=True)
class AgingFairShare(FairShare):
    """Both: priorities rise, and within one the shares take turns."""

    aging: Aging = field(default_factory=Aging)

    def aged(self, waiting: Waiting) -> int:
        return self.aging.aged(waiting)
