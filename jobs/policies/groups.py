"""What becomes of the rest of a sequential group when one of its places ends badly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, cast

from jobs.states import Status

Decision = Literal["stop", "continue", "skip"]


@dataclass(frozen=True, kw_only=True)
class GroupFailureFacts:
    """`on_failure` is the group's own word, one of the decisions. `status` is how the place at `index`, counted
    from 0 among `total`, ended for good, its retries over: FAILED or CANCELLED."""

    on_failure: str
    status: Status
    index: int
    total: int


class GroupFailurePolicy(Protocol):
    def decide(self, facts: GroupFailureFacts) -> Decision:
        """stop: the rest is CANCELLED; skip: the rest is SKIPPED; continue: the next place is released."""


class OnFailure:
    """What the group was submitted with."""

    def decide(self, facts: GroupFailureFacts) -> Decision:
        return cast(Decision, facts.on_failure)
