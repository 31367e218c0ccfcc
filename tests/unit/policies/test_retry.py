"""The built-in retry policy (DEC-007), as a pure function."""

from __future__ import annotations

import pytest

from jobs.conf import conf
from jobs.errors import NoRetry, TokenLimitExceeded
from jobs.policies.groups import OnFailure
from jobs.policies.retry import ExponentialBackoff, RetryFacts, RetryPolicy
from jobs.states import Cause

pytestmark = pytest.mark.once


def decide(attempt: int = 1, **facts: object) -> float | None:
    policy: RetryPolicy = ExponentialBackoff()
    return policy.decide(RetryFacts(**{"attempt": attempt, "max_retries": 3, **facts}))  # type: ignore[arg-type]


def test_dec_007_three_retries_after_10_20_and_40_seconds_and_then_no_more() -> None:
    assert [decide(attempt) for attempt in (1, 2, 3, 4)] == [10, 20, 40, None]


def test_dec_007_a_manual_retry_past_the_budget_is_not_retried_automatically() -> None:
    assert decide(attempt=5) is None


def test_no_retries_means_none() -> None:
    assert decide(max_retries=0) is None


def test_the_delay_stops_growing_at_its_cap() -> None:
    assert decide(attempt=9, max_retries=20, max_sec=100) == 100


def test_a_very_long_chain_does_not_overflow() -> None:
    assert decide(attempt=100_000, max_retries=200_000) == 3600


def test_the_delays_follow_the_base_that_was_given() -> None:
    assert [decide(attempt, base_sec=1.5) for attempt in (1, 2, 3)] == [1.5, 3, 6]


def test_a_base_of_zero_retries_at_once() -> None:
    assert decide(base_sec=0) == 0


@pytest.mark.parametrize(("random", "delay"), [(0, 20), (0.5, 22), (1, 24)])
def test_jitter_adds_a_random_part_of_the_delay(random: float, delay: float) -> None:
    assert decide(attempt=2, jitter=0.2, random=random) == pytest.approx(delay)


def test_jitter_also_spreads_retries_that_have_reached_the_cap() -> None:
    assert decide(attempt=3, max_sec=30, jitter=0.5, random=1) == 45


@pytest.mark.parametrize("exception", [NoRetry, NoRetry("bad address"), TokenLimitExceeded()])
def test_a_failure_that_would_only_repeat_is_permanent(exception: BaseException | type[BaseException]) -> None:
    assert decide(exception=exception) is None


def test_no_retry_wins_over_retry_on() -> None:
    assert decide(exception=NoRetry(), retry_on=(Exception,)) is None


def test_the_token_limit_is_never_retried() -> None:
    assert decide(cause=Cause.TOKEN_LIMIT) is None


@pytest.mark.parametrize("cause", [Cause.ERROR, Cause.TIMEOUT, Cause.LEASE_EXPIRED, Cause.CRASH_RECOVERY])
def test_every_other_cause_is_retried(cause: Cause) -> None:
    assert decide(cause=cause) == 10


@pytest.mark.parametrize(
    ("exception", "delay"),
    [
        (ConnectionError(), 10),
        (ConnectionResetError(), 10),
        (TimeoutError, 10),
        (ValueError(), None),
        (ValueError, None),
    ],
)
def test_retry_on_lets_only_its_own_kinds_of_exception_be_retried(
    exception: BaseException | type[BaseException], delay: float | None
) -> None:
    assert decide(exception=exception, retry_on=(ConnectionError, TimeoutError)) == delay


def test_retry_on_nothing_means_that_no_exception_is_retried() -> None:
    assert decide(exception=ValueError(), retry_on=()) is None


def test_retry_on_says_nothing_about_a_worker_that_vanished() -> None:
    assert decide(cause=Cause.LEASE_EXPIRED, retry_on=(ConnectionError,)) == 10


def test_the_policies_are_made_without_arguments_from_their_settings() -> None:
    assert isinstance(conf.policy("RETRY_POLICY"), ExponentialBackoff)
    assert isinstance(conf.policy("GROUP_FAILURE_POLICY"), OnFailure)
