"""What a setting may be: each rule judges a value, and reads one from the text of an environment variable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

YEAR_SEC = 366 * 24 * 3600
_IDENTIFIER = r"[^\W\d]\w*"
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class NotAccepted(Exception):
    """Continues the sentence that the key begins: "must be …"."""


@dataclass(frozen=True)
class Rule:
    """`accept` returns the clean value or raises NotAccepted; `parse` leaves text that it cannot read as text."""

    accept: Callable[[Any], Any]
    parse: Callable[[str], Any]
    optional: bool = False
    record: type | None = None


def number(low: float, high: float, unit: str = "", *, optional: bool = False) -> Rule:
    def accept(value: Any) -> float:
        # NaN fails every comparison, so the range refuses it too.
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise not_accepted(f"a number{unit} from {low:.12g} to {high:.12g}", value)
        return value

    return Rule(accept, _parse_number, optional)


def seconds(low: float = 0.01, *, optional: bool = False) -> Rule:
    return number(low, YEAR_SEC, " of seconds", optional=optional)


def whole(low: int, high: int, *, optional: bool = False) -> Rule:
    def accept(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise not_accepted(f"a whole number from {low} to {high}", value)
        return value

    return Rule(accept, _parse_number, optional)


def flag() -> Rule:
    def accept(value: Any) -> bool:
        if not isinstance(value, bool):
            raise not_accepted("True or False", value)
        return value

    return Rule(accept, lambda text: _FLAGS.get(text.lower(), text))


def text(pattern: str, expected: str, *, optional: bool = False, secret: bool = False) -> Rule:
    """Text of a form; a `secret` one is never quoted in a message."""

    def accept(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise NotAccepted(f"must be {expected}") if secret else not_accepted(expected, value)
        return value

    return Rule(accept, str, optional)


def choice(*words: str, optional: bool = False) -> Rule:
    return text("|".join(words), f"one of {', '.join(words)}", optional=optional)


def dotted_path(*, optional: bool = False) -> Rule:
    return text(rf"{_IDENTIFIER}(\.{_IDENTIFIER})+", "a dotted path", optional=optional)


def several(one: Rule, what: str) -> Rule:
    """A list of values that each pass `one`. A lone string is refused: it would be read letter by letter."""

    def accept(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple | set | frozenset):
            raise not_accepted(f"a list of {what}", value)
        return tuple(one.accept(item) for item in value)

    def parse(listed: str) -> tuple[Any, ...]:
        return tuple(one.parse(part.strip()) for part in listed.split(",") if part.strip())

    return Rule(accept, lambda listed: () if listed.lower() == "none" else parse(listed))


def names() -> Rule:
    return several(text(r"[^\x00-\x1f\x7f]{1,200}", "text of 1 to 200 characters"), "names")


def modules() -> Rule:
    return several(text(rf"{_IDENTIFIER}(\.{_IDENTIFIER})*", "a module name"), "module names")


def day() -> Rule:
    def accept(value: Any) -> date:
        if isinstance(value, date) and not isinstance(value, datetime):
            return value
        try:
            return date.fromisoformat(value)
        except (TypeError, ValueError):
            raise not_accepted("a date such as 2027-12-31", value) from None

    return Rule(accept, str)


def mapping(accept: Callable[[Mapping[Any, Any]], Any]) -> Rule:
    return Rule(lambda value: accept(_accept_mapping(value)), _parse_json)


def record(kind: type) -> Rule:
    """A dict whose keys are the fields of a dataclass, each with a rule of its own."""
    return Rule(_accept_mapping, _parse_json, record=kind)


def not_accepted(expected: str, value: object) -> NotAccepted:
    return NotAccepted(f"must be {expected}, not {describe_value(value)}")


def describe_value(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of that size"  # Python itself refuses to print the longest ones
    plain = value is None or isinstance(value, str | int | float)
    described = repr(value) if plain else f"a {type(value).__name__}"
    return described if len(described) <= 60 else described[:59] + "…"


def _accept_mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise not_accepted("a dict", value)
    return value


def _parse_number(written: str) -> Any:
    for kind in (int, float):
        try:
            return kind(written)
        except ValueError:
            continue
    return written


def _parse_json(written: str) -> Any:
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written
