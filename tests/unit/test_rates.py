"""Rates and token buckets: what is parsed, and what a bucket holds after a while."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.rates import MAX_WAIT_SEC, Bucket, Buckets, Rate, make_buckets, parse_rate

pytestmark = pytest.mark.once
NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


@dataclass
class Row:
    rate: str = ""
    token_rate: str = ""
    burst: int | None = None
    rate_level: float | None = None
    token_level: float | None = None
    bucket_at: datetime | None = None


@pytest.mark.parametrize(
    ("text", "rate", "per_sec"),
    [
        ("60/min", "60/min", 1.0),
        (" 60 / Minute ", "60/min", 1.0),
        ("100/m", "100/min", 100 / 60),
        ("5/s", "5/s", 5.0),
        ("7200/hour", "7200/h", 2.0),
        ("86400/d", "86400/day", 1.0),
    ],
)
def test_a_rate_is_a_number_in_a_unit_of_time(text: str, rate: str, per_sec: float) -> None:
    parsed = parse_rate(text)
    assert (str(parsed), parsed.per_sec) == (rate, pytest.approx(per_sec))
    assert parse_rate(str(parsed)) == parsed


@pytest.mark.parametrize(
    "value",
    [
        *("", "60", "60/", "/min", "0/min", "-1/min", "1.5/min", "60/week", "60/min/min", "6 0/min", "99999999999/s"),
        *(60, None, True, ["60/min"], "٦٠/min"),  # digits of another script
    ],
)
def test_what_is_no_rate_is_refused_with_what_is_expected(value: Any) -> None:
    with pytest.raises(ValueError, match="60/min"):
        parse_rate(value)


def test_starts_are_spread_evenly_and_a_pause_saves_up_one_burst() -> None:
    limit = Row(rate="60/min", burst=5, rate_level=0.0, bucket_at=NOW)
    levels = [make_buckets(limit, NOW + timedelta(seconds=sec)).starts for sec in (0, 1, 2.5, 100)]
    assert [bucket and bucket.count_whole() for bucket in levels] == [0, 1, 2, 5]
    assert make_buckets(limit, NOW + timedelta(seconds=0.25)).seconds_to_start() == pytest.approx(0.75)


@pytest.mark.parametrize("burst", [None, 1])
def test_without_a_burst_one_job_starts_at_a_time(burst: int | None) -> None:
    buckets = make_buckets(Row(rate="600/min", burst=burst), NOW)
    assert buckets.starts is not None
    assert buckets.starts.count_whole() == 1
    assert buckets.seconds_to_start(started=1) == pytest.approx(0.1)


def test_used_tokens_are_paid_off_before_the_next_start() -> None:
    limit = Row(token_rate="600/min", token_level=-50.0, bucket_at=NOW)
    assert make_buckets(limit, NOW).next_start_at(NOW) == NOW + timedelta(seconds=5)
    later = NOW + timedelta(seconds=6)
    assert make_buckets(limit, later).next_start_at(later) is None


def test_a_debt_that_takes_ages_to_pay_off_has_a_time_all_the_same() -> None:
    buckets = make_buckets(Row(token_rate="1/day", token_level=-(2.0**63), bucket_at=NOW), NOW)
    assert buckets.next_start_at(NOW) == NOW + timedelta(seconds=MAX_WAIT_SEC)


def test_of_unused_tokens_those_of_one_second_are_kept() -> None:
    tokens = make_buckets(Row(token_rate="600/min", token_level=0.0, bucket_at=NOW), NOW + timedelta(days=1)).tokens
    assert tokens is not None
    assert tokens.level == 10.0


def test_a_clock_that_goes_back_neither_refills_nor_blocks() -> None:
    limit = Row(rate="60/min", burst=3, rate_level=2.0, bucket_at=NOW)
    starts = make_buckets(limit, NOW - timedelta(hours=1)).starts
    assert starts is not None
    assert starts.level == 2.0


def test_a_clock_that_goes_forward_gives_one_burst() -> None:
    starts = make_buckets(Row(rate="60/min", burst=3, rate_level=0.0, bucket_at=NOW), NOW + timedelta(days=9)).starts
    assert starts is not None
    assert starts.level == 3.0


def test_a_smaller_burst_takes_effect_at_once() -> None:
    starts = make_buckets(Row(rate="60/min", burst=2, rate_level=50.0, bucket_at=NOW), NOW).starts
    assert starts is not None
    assert starts.count_whole() == 2


def test_sums_of_fractions_count_as_whole() -> None:
    bucket = Bucket(Rate(3, "s"), 1.0, 0.0)
    for _ in range(10):
        bucket = bucket.refill(1 / 30)
    assert bucket.count_whole() == 1
    assert bucket.seconds_until(1) == 0


def test_a_limit_without_rates_has_no_buckets() -> None:
    assert make_buckets(Row(), NOW) == Buckets()
