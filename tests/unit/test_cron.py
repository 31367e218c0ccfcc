"""Cron on days when clocks change: as Debian's cron, in zones of every temper."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from schedules.cron import Cron, CronError, UnknownZone, get_zone, parse_expression
from tests.unit.debian_cron import due_times, whole_day

pytestmark = pytest.mark.once

EXPRESSIONS = (
    "30 2 * * *",
    "0 2 * * *",
    "0 3 * * *",
    "15 1 * * *",
    "45 1 * * *",
    "30 0 * * *",
    "0 0 * * *",
    "30 23 * * *",
    "0,30 1,2 * * *",
    "0 2,3 * * *",
    "0 0-4 * * 0,5,6",
    "* * * * *",
    "*/15 * * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/30 2 * * *",
    "*/20 0-3 * * *",
    "5-59/10 * * * *",
)
# Each place's changes: forward, then back. Berlin and New York by an hour at night, Cairo at midnight, Troll by two
# hours, Lord Howe by half an hour.
DAYS = {
    "Europe/Berlin": ((2026, 3, 29), (2026, 10, 25)),
    "America/New_York": ((2026, 3, 8), (2026, 11, 1)),
    "Africa/Cairo": ((2026, 4, 24), (2026, 10, 29)),
    "Antarctica/Troll": ((2026, 3, 29), (2026, 10, 25)),
    "Australia/Lord_Howe": ((2026, 10, 4), (2026, 4, 5)),
}
CASES = [(expression, place, day) for place, days in DAYS.items() for day in days for expression in EXPRESSIONS]


def list_due_times(expression: str, place: str, begin: datetime, end: datetime) -> list[datetime]:
    """Due times as the scheduler finds them: each from the one before."""
    cron, times = Cron(expression, get_zone(place)), []
    last: datetime | None = begin - timedelta(seconds=1)
    while last is not None and (last := cron.next_after(last)) is not None and last < end:
        times.append(last)
    return times


def format_times(times: list[datetime], place: str) -> list[str]:
    return [f"{moment.astimezone(ZoneInfo(place)):%d %H:%M %z}" for moment in times]


def test_the_days_of_the_table_are_days_on_which_clocks_change() -> None:
    for place, days in DAYS.items():
        for begin, end in (whole_day(ZoneInfo(place), *day) for day in days):
            offsets = [item.astimezone(ZoneInfo(place)).utcoffset() for item in (begin, end)]
            assert offsets[0] != offsets[1], place
    assert len(CASES) == 180


@pytest.mark.parametrize(("expression", "place", "day"), CASES)
def test_due_times_are_those_of_debians_cron(expression: str, place: str, day: tuple[int, int, int]) -> None:
    begin, end = whole_day(ZoneInfo(place), *day)
    expected = due_times(expression, ZoneInfo(place), begin, end)
    assert format_times(list_due_times(expression, place, begin, end), place) == format_times(expected, place)


@pytest.mark.parametrize(
    ("expression", "place", "day", "expected"),
    [
        # The rules spelled out, so that the reference implementation need not be trusted alone.
        ("30 2 * * *", "Europe/Berlin", (2026, 3, 29), ["29 03:00 +0200"]),
        ("30 2 * * *", "Europe/Berlin", (2026, 10, 25), ["25 02:30 +0200"]),
        ("0,30 1,2 * * *", "Europe/Berlin", (2026, 3, 29), ["29 01:00 +0100", "29 01:30 +0100", "29 03:00 +0200"]),
        ("30 2 * * *", "America/New_York", (2026, 3, 8), ["08 03:00 -0400"]),
        ("30 0 * * *", "Africa/Cairo", (2026, 4, 24), ["24 01:00 +0300"]),
        ("15 1 * * *", "Antarctica/Troll", (2026, 3, 29), ["29 03:00 +0200"]),
        ("*/30 2 * * *", "Europe/Berlin", (2026, 3, 29), []),
        ("*/30 2 * * *", "Europe/Berlin", (2026, 10, 25), [f"25 02:{m} +0{h}00" for h in (2, 1) for m in ("00", "30")]),
        ("30 2 * * *", "Australia/Lord_Howe", (2026, 10, 4), ["04 02:30 +1100"]),
        ("45 1 * * *", "Australia/Lord_Howe", (2026, 4, 5), ["05 01:45 +1100"]),
    ],
)
def test_the_rules_in_words(expression: str, place: str, day: tuple[int, int, int], expected: list[str]) -> None:
    begin, end = whole_day(ZoneInfo(place), *day)
    times = format_times(list_due_times(expression, place, begin, end), place)
    assert [moment for moment in times if moment[:2] == f"{day[2]:02}"] == expected


def test_the_repeated_half_hour_of_lord_howe_comes_twice_for_what_follows_the_clock() -> None:
    begin, end = whole_day(ZoneInfo("Australia/Lord_Howe"), 2026, 4, 5)
    times = format_times(list_due_times("45 */1 * * *", "Australia/Lord_Howe", begin, end), "Australia/Lord_Howe")
    assert [moment for moment in times if moment.startswith("05 01:45")] == ["05 01:45 +1100", "05 01:45 +1030"]


def test_any_expression_in_any_zone_is_as_debians_cron_has_it() -> None:
    chance = random.Random(20261116)
    places = [
        *DAYS,
        "Australia/LHI",
        "Africa/Casablanca",
        "America/Sao_Paulo",
        "Asia/Kathmandu",
        "Pacific/Chatham",
        "UTC",
    ]
    for _ in range(150):
        place, expression = chance.choice(places), any_expression(chance)
        day = datetime(chance.choice((2025, 2026, 2027)), chance.randint(1, 12), chance.randint(1, 28), tzinfo=UTC)
        if chance.random() < 0.7 and place in DAYS:
            day = datetime(*chance.choice(DAYS[place]), tzinfo=UTC)
        begin, end = day - timedelta(hours=chance.randint(0, 40)), day + timedelta(hours=chance.randint(1, 40))
        expected = due_times(expression, ZoneInfo(place), begin, end)
        assert list_due_times(expression, place, begin, end) == expected, (expression, place, begin, end)


def any_expression(chance: random.Random) -> str:
    minute = chance.choice(["*", "*/7", "*/15", str(chance.randint(0, 59)), "0,30", "10-20/5", "5/25"])
    hour = chance.choice(["*", "*/2", "*/5", str(chance.randint(0, 4)), "0-3", "1,2,23", "22-23"])
    day = chance.choice(["*", "*", "*", str(chance.randint(1, 28)), "*/2", "1-15"])
    month = chance.choice(["*", "*", "3,4,10,11", "MAR-NOV", "*/2"])
    weekday = chance.choice(["*", "*", "0", "7", "MON-FRI", "5-7", "*/2"])
    return f"{minute} {hour} {day} {month} {weekday}"


@pytest.mark.parametrize("place", [*DAYS, "UTC"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/15 * * * *", "30 */1 * * *", "15 1 * * *"])
def test_a_due_time_is_the_same_from_wherever_one_looks(expression: str, place: str) -> None:
    """The next due time depends on nothing but the moment: schedulers that look at other times agree."""
    cron = Cron(expression, get_zone(place))
    for day in DAYS.get(place, ((2026, 3, 29),)):
        begin, end = whole_day(ZoneInfo(place), *day)
        times = list_due_times(expression, place, begin, end)
        moment = begin - timedelta(seconds=1)
        while moment < end - timedelta(days=1, hours=-13):
            assert cron.next_after(moment) == next(item for item in times if item > moment), moment
            moment += timedelta(minutes=7, seconds=13, microseconds=99)


@pytest.mark.parametrize(
    ("written", "fields"),
    [
        ("0 3 * * *", "0 3 * * *"),
        ("  0\t3  * *   1-5 ", "0 3 * * 1-5"),
        ("@daily", "0 0 * * *"),
        ("@MIDNIGHT", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("0 0 29 2 *", "0 0 29 2 *"),
        ("0 0 L * *", "0 0 L * *"),
        ("0 0 * * FRI#2", "0 0 * * FRI#2"),
    ],
)
def test_five_fields_and_names_are_understood(written: str, fields: str) -> None:
    assert parse_expression(written) == fields


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "no cron expression"),
        ("hello world", "has 2 fields"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("60 * * * *", "bad field: minute"),
        ("* 24 * * *", "bad field: hour"),
        ("* * 0 * *", "bad field: day of the month"),
        ("* * 32 * *", "bad field: day of the month"),
        ("* * * 13 *", "bad field: month"),
        ("* * * * 8", "bad field: day of the week"),
        ("*/0 * * * *", "bad field: minute"),
        ("5-1 * * * *", "bad field: minute"),
        ("1,,2 * * * *", "bad field: minute"),
        ("-1 * * * *", "bad field: minute"),
        ("* * * * MON#6", "bad field: day of the week"),
        ("١ * * * *", "no cron expression"),
        ("* * * * *; rm", "no cron expression"),
        ("0 0\u00a0* * *", "no cron expression"),
        ("9" * 190 + " * * * *", "bad field: minute"),
        ("@reboot", "is not one of"),
        ("@every 5m", "is not one of"),
        ("@", "is not one of"),
        ("0 0 31 2 *", "never comes due"),
        ("0 0 30 2 *", "never comes due"),
        ("0 0 31 4,6,9,11 *", "never comes due"),
        ("0 0 30 FEB */2", "never comes due"),
    ],
)
def test_what_makes_no_sense_or_never_comes_is_refused_with_the_reason(written: str, why: str) -> None:
    with pytest.raises(CronError, match=why):
        parse_expression(written)


@pytest.mark.parametrize(
    "name", ["Europe/Berlin", "UTC", "Australia/LHI", "Etc/GMT+5", "America/Argentina/Buenos_Aires"]
)
def test_zones_go_by_their_names(name: str) -> None:
    assert get_zone(name).key == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "Mars/Phobos", "europe/berlin", "CEST", "Europe", "Europe/", "Europe/Berlin/", "+02:00", "Factory"),
        *("../../etc/passwd", "/etc/localtime", "localtime", "posix/UTC", "right/UTC", "zone.tab", "tzdata.zi"),
        *("Europe/../UTC", "Europe\\Berlin", "UTC\0", "UTC ", "x" * 500),
    ],
)
def test_no_other_name_and_no_path_is_a_zone(name: str) -> None:
    with pytest.raises(UnknownZone, match="There is no time zone"):
        get_zone(name)


def test_a_near_miss_is_told_what_was_meant() -> None:
    with pytest.raises(UnknownZone, match="Did you mean “Europe/Berlin”"):
        get_zone("Europe/Berlinn")


def test_the_calendar_ends() -> None:
    far = datetime(9999, 12, 31, 23, tzinfo=UTC)
    for expression in ("0 0 1 1 *", "*/5 1 * * *", "0 0 29 2 *"):
        for place in ("UTC", "Europe/Berlin"):
            assert Cron(expression, get_zone(place)).next_after(far) is None
    assert Cron("0 0 * 2 FRI#5", get_zone("UTC")).next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(
        2036, 2, 29, tzinfo=UTC
    )
