"""Durations and moments have one form on every page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone, translation

from jobs.admin import formatting
from jobs.time_text import format_age, format_clock, format_duration, format_estimate, format_exact


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *[(-5, "0 s"), (0, "0 s"), (0.00163, "2 ms"), (0.0001, "1 ms"), (0.85, "850 ms"), (0.9996, "1 s")],
        *[(1.6912, "1.69 s"), (12.4, "12.4 s"), (59.96, "1 min"), (173, "2 min 53 s"), (65, "1 min 05 s")],
        *[(3599.6, "1 h"), (3840, "1 h 04 min"), (86_399, "1 d"), (3 * 86_400 + 4 * 3600, "3 d 4 h")],
    ],
)
def test_a_duration_has_one_form_with_at_most_two_units(seconds: float, shown: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == shown


def test_a_duration_has_the_decimal_sign_of_the_language() -> None:
    with translation.override("de"):
        assert format_duration(timedelta(seconds=12.4)) == "12,4 s"


def test_a_share_and_a_rate_have_the_decimal_sign_of_the_language() -> None:
    assert (formatting.format_percent(0.0558), formatting.format_decimal(3.0)) == ("5.6 %", "3.0")
    with translation.override("de"):
        assert (formatting.format_percent(0.0558), formatting.format_decimal(3.0)) == ("5,6 %", "3,0")


def test_a_day_is_written_as_its_language_does() -> None:
    with translation.override("de"):
        assert format_clock(datetime(2020, 11, 18, 3, 6, tzinfo=UTC)) == "18. Nov 2020, 03:06 UTC"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "now"), (59, "59 s ago"), (119, "1 min ago"), (7300, "2 h ago"), (200_000, "2 d ago"), (-61, "in 1 min")],
)
def test_an_age_is_rounded_down_to_one_unit(seconds: float, shown: str) -> None:
    assert format_age(timedelta(seconds=seconds)) == shown


def test_a_moment_is_relative_with_milliseconds_and_zone_in_its_title() -> None:
    moment = datetime(2026, 11, 17, 9, 6, 1, 703_900, tzinfo=UTC)
    with timezone.override("Europe/Berlin"):
        shown = formatting.format_relative_time(moment, moment + timedelta(minutes=3))
    assert shown == (
        '<time datetime="2026-11-17T09:06:01.703+00:00" title="2026-11-17 10:06:01.703 CET">3 min ago</time>'
    )
    assert formatting.format_relative_time(None) is None


def test_a_moment_of_a_log_is_exact_and_has_its_date_unless_it_is_of_today() -> None:
    now = timezone.now()
    assert f">{format_exact(now, with_zone=False, with_date=False)}<" in str(formatting.format_exact_time(now))
    yesterday = now - timedelta(days=1)
    assert f">{format_exact(yesterday, with_zone=False)}<" in str(formatting.format_exact_time(yesterday))


def test_a_moment_within_a_sentence_names_its_zone_and_on_another_day_the_day() -> None:
    now = timezone.localtime()
    assert format_clock(now) == f"{now:%H:%M} UTC"
    assert format_clock(datetime(2020, 11, 18, 3, 6, tzinfo=UTC)) == "18 Nov 2020, 03:06 UTC"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.2, "1 s"), (7.11, "7 s"), (59.7, "1 min"), (282.4, "4 min 42 s"), (926, "15 min"), (5400, "1 h 30 min")],
)
def test_an_estimate_has_no_precision_that_it_cannot_have(seconds: float, shown: str) -> None:
    assert format_estimate(timedelta(seconds=seconds)) == shown
