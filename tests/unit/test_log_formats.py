"""No message and no exception can imitate a log line."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from django.conf import settings
from django.utils.module_loading import import_string

from jobs.log_formats import JsonFormatter, SafeFormatter, TextFormatter
from jobscheduler import settings as product_settings

pytestmark = pytest.mark.once
IMITATION = "10:00:00 info    jobs.web: user admin logged in"
BREAKS = ("\n", "\r", "\x0b", "\x0c", "\x1b[2K\n", "\x85", "\u2028", "\0")


def make_record(message: str, error: str) -> logging.LogRecord:
    try:
        raise ValueError(error)
    except ValueError:
        return logging.LogRecord("jobs", logging.ERROR, __file__, 1, "failed: %s", (message,), sys.exc_info())


@pytest.mark.parametrize("character", BREAKS, ids=repr)
@pytest.mark.parametrize("style", [SafeFormatter, TextFormatter, JsonFormatter])
def test_no_text_begins_a_line_of_its_own(style: type[logging.Formatter], character: str) -> None:
    formatter = style()
    text = f"a{character}{IMITATION}"
    first, *others = formatter.format(make_record(text, text)).splitlines()
    assert not first.startswith(IMITATION)
    assert [line for line in others if not line.startswith("  | ")] == []
    assert [char for line in (first, *others) for char in line if not char.isprintable()] == []


def test_the_traceback_is_whole_and_readable() -> None:
    lines = SafeFormatter().format(make_record("a", "the\nend")).splitlines()
    assert lines[0] == "failed: a"
    assert lines[1] == "  | Traceback (most recent call last):"
    assert lines[-2:] == ["  | ValueError: the", "  | end"]
    document = json.loads(JsonFormatter().format(make_record("a", "the\nend")))
    assert document["exception"].endswith("ValueError: the\nend")


def test_a_masked_traceback_takes_the_place_of_the_exception() -> None:
    for formatter in (SafeFormatter(), TextFormatter(), JsonFormatter()):
        record = make_record("a", "hunter2")
        record.exc_text = "ValueError: masked"
        assert ("hunter2" in formatter.format(record), "masked" in formatter.format(record)) == (False, True)


def test_the_product_logs_with_it() -> None:
    assert settings.configured
    (formatter,) = product_settings.LOGGING["formatters"].values()
    assert import_string(formatter["()"]) is SafeFormatter
