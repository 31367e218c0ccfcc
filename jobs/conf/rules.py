"""Rules for settings: each validates a value, and parses one from the text of an environment variable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from jobs.rates import parse_rate

YEAR_SEC = 366 * 24 * 3600
_IDENTIFIER = r"[^\W\d]\w*"
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class InvalidSetting(Exception):
    """A wrong value. The text follows the name of the key: "must be …"."""


@dataclass(frozen=True)
class Rule:
    """`accept` returns the clean value or raises InvalidSetting; `parse` returns invalid text unchanged."""

    accept: Callable[[Any], Any]
    parse: Callable[[str], Any]
    optional: bool = False
    record: type | None = None


def number(low: float, high: float, unit: str = "", *, optional: bool = False) -> Rule:
    def accept(value: Any) -> float:
        # NaN fails every comparison, so the range excludes it, too.
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise build_rejection(f"a number{unit} from {low:.12g} to {high:.12g}", value)
        return value

    return Rule(accept, _parse_number, optional)


def seconds(low: float = 0.01, *, optional: bool = False) -> Rule:
    return number(low, YEAR_SEC, " of seconds", optional=optional)


def integer(low: int, high: int, *, optional: bool = False) -> Rule:
    def accept(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise build_rejection(f"a whole number from {low} to {high}", value)
        return value

    return Rule(accept, _parse_number, optional)


def flag() -> Rule:
    def accept(value: Any) -> bool:
        if not isinstance(value, bool):
            raise build_rejection("True or False", value)
        return value

    return Rule(accept, lambda text: _FLAGS.get(text.lower(), text))


def text(pattern: str, expected: str, *, optional: bool = False, secret: bool = False) -> Rule:
    """Return the rule for text that matches a pattern; a `secret` value is never quoted in a message."""

    def accept(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise InvalidSetting(f"must be {expected}") if secret else build_rejection(expected, value)
        return value

    return Rule(accept, str, optional)


def rate() -> Rule:
    """Return the rule for a rate such as `60/min`; its value is the text in one spelling."""

    def accept(value: Any) -> str:
        try:
            return str(parse_rate(value))
        except ValueError as error:
            raise build_rejection(str(error), value) from None

    return Rule(accept, str)


def choice(*values: str, optional: bool = False) -> Rule:
    return text("|".join(values), f"one of {', '.join(values)}", optional=optional)


def dotted_path(*, optional: bool = False) -> Rule:
    return text(rf"{_IDENTIFIER}(\.{_IDENTIFIER})+", "a dotted path", optional=optional)


def list_of(rule: Rule, items: str) -> Rule:
    """Return the rule for a list whose items pass `rule`. A string is not a list: it would be read letter by letter."""

    def accept(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple | set | frozenset):
            raise build_rejection(f"a list of {items}", value)
        return tuple(rule.accept(item) for item in value)

    def parse(text: str) -> tuple[Any, ...]:
        return tuple(rule.parse(part.strip()) for part in text.split(",") if part.strip())

    return Rule(accept, lambda text: () if text.lower() == "none" else parse(text))


def names() -> Rule:
    return list_of(text(r"[^\x00-\x1f\x7f]{1,200}", "text of 1 to 200 characters"), "names")


def modules() -> Rule:
    return list_of(text(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*", "a module name"), "module names")


def day() -> Rule:
    def accept(value: Any) -> date:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
        try:
            return date.fromisoformat(value)
        except (TypeError, ValueError):
            raise build_rejection("a date such as 2027-12-31", value) from None

    return Rule(accept, str)


def mapping(accept: Callable[[Mapping[Any, Any]], Any]) -> Rule:
    return Rule(lambda value: accept(_accept_mapping(value)), _parse_json)


def record(kind: type) -> Rule:
    """Return the rule for a dict whose keys are the fields of a dataclass, each with its own rule."""
    return Rule(_accept_mapping, _parse_json, record=kind)


def build_rejection(expected: str, value: object) -> InvalidSetting:
    return InvalidSetting(f"must be {expected}, not {describe_value(value)}")


def describe_value(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of that size"  # Python cannot print the longest ones
    plain = value is None or isinstance(value, str | int | float)
    described = repr(value) if plain else f"a {type(value).__name__}"
    return described if len(described) <= 60 else described[:59] + "…"


def _accept_mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise build_rejection("a dict", value)
    return value


def _parse_number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
