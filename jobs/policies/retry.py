"""Decide whether a failed job is retried, and after which delay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jobs.errors import NoRetry, Retry, TokenLimitExceeded
from jobs.states import Cause

_MAX_STEPS = 64  # above any sensible cap, and far below a float's overflow


@dataclass(frozen=True, kw_only=True)
class RetryFacts:
    """One failure. The numbers are already resolved: submission over template over handler over settings.

    `attempt` is 1 for the original, so there were `attempt - 1` retries, manual ones included.
    `exception`: the one that the handler raised, where this process has it; `error_class`: the path of its class
    ("requests.exceptions.Timeout"), empty if there was none. `random`: a number from 0 to 1, drawn by the caller.
    """

    attempt: int
    max_retries: int
    cause: Cause = Cause.ERROR
    job_type: str = ""
    exception: BaseException | type[BaseException] | None = None
    error_class: str = ""
    retry_on: tuple[type[BaseException], ...] | None = None
    base_sec: float = 10
    backoff: float = 2
    max_sec: float = 3600
    jitter: float = 0
    random: float = 0


class RetryPolicy(Protocol):
    def decide(self, facts: RetryFacts) -> float | None:
        """Return the delay in seconds until the retry; None: the failure is permanent.

        Where the handler raised `Retry`, the delay that it names replaces this one.
        """


class ExponentialBackoff:
    """Retry after 10 s, 20 s, 40 s, …, up to the cap; jitter is added on top, so that capped retries spread too."""

    def decide(self, facts: RetryFacts) -> float | None:
        if facts.attempt > facts.max_retries or not is_worth_retrying(facts):
            return None
        steps = min(facts.attempt - 1, _MAX_STEPS)
        delay = min(facts.base_sec * float(facts.backoff) ** steps, facts.max_sec)
        return delay * (1 + facts.jitter * facts.random)


def is_worth_retrying(facts: RetryFacts) -> bool:
    """Return whether a retry could succeed.

    `retry_on` applies to exceptions, not to timeouts or lost workers, nor to a handler that asks for its retry.
    """
    if facts.cause == Cause.TOKEN_LIMIT:
        return False
    if facts.exception is None:
        return True
    exception = facts.exception if isinstance(facts.exception, type) else type(facts.exception)
    if issubclass(exception, (NoRetry, TokenLimitExceeded)):
        return False
    if issubclass(exception, Retry):
        return True
    return facts.retry_on is None or issubclass(exception, facts.retry_on)
