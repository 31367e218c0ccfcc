"""Decide what happens to the rest of a sequential group when one of its members fails or is cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, cast

from jobs.states import Status

Decision = Literal["stop", "continue", "skip"]


@dataclass(frozen=True, kw_only=True)
class GroupFailureFacts:
    """A member of a sequential group that did not complete.

    `on_failure`: the group's field, one of the decisions. `status`: FAILED (its retries are used up) or CANCELLED.
    `index`: the member's place, from 0, among `total`.
    """

    on_failure: str
    status: Status
    index: int
    total: int


class GroupFailurePolicy(Protocol):
    def decide(self, facts: GroupFailureFacts) -> Decision:
        """Return stop: the rest is CANCELLED; skip: the rest is SKIPPED; or continue: the next member is released."""


class OnFailure:
    """Decide by the `on_failure` that the group was submitted with."""

    def decide(self, facts: GroupFailureFacts) -> Decision:
        return cast(Decision, facts.on_failure)
