"""Whether a failed job is tried again, and after how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jobs.errors import NoRetry, TokenLimitExceeded
from jobs.states import Cause

_MOST_DOUBLINGS = 64  # past any sensible cap, and far from overflowing a float


@dataclass(frozen=True, kw_only=True)
class RetryFacts:
    """One failure. The numbers are already resolved: submission over template over handler over settings.

    `attempt` is 1 for the original, so `attempt - 1` retries, manual ones included, lie behind it.
    `exception` is what the handler raised, if it did; `random` is a number from 0 to 1, drawn by the caller.
    """

    attempt: int
    max_retries: int
    cause: Cause = Cause.ERROR
    exception: BaseException | type[BaseException] | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    base_sec: float = 10
    max_sec: float = 3600
    jitter: float = 0
    random: float = 0


class RetryPolicy(Protocol):
    def decide(self, facts: RetryFacts) -> float | None:
        """The delay in seconds until the retry; None: the failure is permanent."""


class ExponentialBackoff:
    """10 s, 20 s, 40 s, …, up to the cap; jitter comes on top, so that capped retries spread too."""

    def decide(self, facts: RetryFacts) -> float | None:
        if facts.attempt > facts.max_retries or not is_worth_retrying(facts):
            return None
        doublings = min(facts.attempt - 1, _MOST_DOUBLINGS)
        delay = min(facts.base_sec * 2.0**doublings, facts.max_sec)
        return delay * (1 + facts.jitter * facts.random)


def is_worth_retrying(facts: RetryFacts) -> bool:
    """False where the same would only happen again. `retry_on` judges exceptions, not timeouts or lost workers."""
    if facts.cause == Cause.TOKEN_LIMIT:
        return False
    if facts.exception is None:
        return True
    kind = facts.exception if isinstance(facts.exception, type) else type(facts.exception)
    if issubclass(kind, (NoRetry, TokenLimitExceeded)):
        return False
    return facts.retry_on is None or issubclass(kind, facts.retry_on)
