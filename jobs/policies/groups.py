"""Decide about the waiting rest of a group when one of its members fails or is cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, cast

from jobs.states import Status

Decision = Literal["stop", "continue", "skip"]


@dataclass(frozen=True, kw_only=True)
class GroupFailureFacts:
    """A member that did not complete, of a sequential group or of a parallel one with a final job.

    `on_failure`: the group's field, one of the decisions. `status`: FAILED (its retries are used up) or CANCELLED.
    `index`: the member's place, from 0, among `total`.
    """

    on_failure: str
    status: Status
    index: int
    total: int


class GroupFailurePolicy(Protocol):
    def decide(self, facts: GroupFailureFacts) -> Decision:
        """Return stop: the rest is CANCELLED; skip: the rest is SKIPPED; or continue: the next member is released.

        The rest of a parallel group is its final job, decided after the last other member has ended.
        """


class OnFailure:
    """Decide by the `on_failure` that the group was submitted with."""

    def decide(self, facts: GroupFailureFacts) -> Decision:
        return cast(Decision, facts.on_failure)
