"""What all commands share: durations, ages, tables."""

from __future__ import annotations

import os
import pwd
from datetime import timedelta

import pytest

from jobs.errors import InvalidInput
from jobs.management import base
from jobs.validation import fields

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("1h30m", 5400), ("1.5h", 5400), ("30d", 2_592_000), ("2w", 1_209_600)],
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: int) -> None:
    assert fields.parse_duration(text, "--since") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "5 m", "m", "-5m", "5y", "0s", "1h ", "٣m", "1e3s", "9" * 400 + "s", "99999w"]
)
def test_what_is_no_duration_is_refused_by_the_name_of_its_option(text: str) -> None:
    with pytest.raises(InvalidInput, match="--since"):
        fields.parse_duration(text, "--since")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (-3, "0s"), (0.9, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h 0m"), (90_000, "1d 1h")],
)
def test_an_age_has_its_two_largest_units(seconds: float | None, shown: str) -> None:
    assert base.format_age(seconds) == shown


def test_a_table_is_aligned_and_shows_control_characters_instead_of_obeying_them() -> None:
    assert base.format_table(("A", "LONG"), [("wide value", None), ("x", "\x1b[31m\n")]) == [
        "A           LONG",
        "wide value",
        "x           \\x1b[31m\\n",
    ]
    assert base.format_table(("A",), [("123456",)], width=4) == ["A", "123…"]


def test_the_actor_is_the_user_of_the_process_whatever_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "boss")
    assert base.current_actor().name == pwd.getpwuid(os.getuid()).pw_name

    def nameless(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    assert base.current_actor().name == f"uid {os.getuid()}"
