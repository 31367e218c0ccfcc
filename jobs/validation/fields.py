"""Parse single input values; API, CLI, admin, services and remote results all use these functions.

Each function returns the clean value or raises InvalidInput, which names the field.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from jobs import rates
from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound
from jobs.states import OnConflict, UniqueUntil
from jobs.validation.json import (
    INT_MAX,
    INT_MIN,
    OBJECT_BYTES,
    ByteBudget,
    ValueRejected,
    copy_as_json,
    measure_text,
    to_utc,
)
from jobs.validation.sanitize import escape_unprintable, sanitize_text

Field = str | Sequence[str | int]

PRIORITIES = {"LOW": 25, "NORMAL": 50, "HIGH": 75, "URGENT": 100}
CONSTRAINTS = ("cpu_heavy", "disk_write_heavy", "network_heavy")
MAX_TAGS, TAG_LENGTH, NAME_LENGTH, REASON_LENGTH = 32, 64, 200, 2000
MAX_PARAM_NAMES, UNIQUE_KEY_LENGTH = 100, 255
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,255}")
_ID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
# Possessive, and without a failure after the opening quote: the time is linear for any text.
UNITS_SEC = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_DAYS = 36_500
MAX_DURATION_LENGTH = 100
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[smhdw])+")
_DURATION_PART = re.compile(r"([0-9.]+)([smhdw])")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# In well-formed JSON, a string can contain a NUL or half a surrogate pair only as an escape.
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def parse_text(
    value: Any, field: Field, *, max_length: int = 10_000, allow_empty: bool = False, single_line: bool = False
) -> str:
    """Return text that both databases can store."""
    if not isinstance(value, str):
        raise InvalidInput(field, _("must be text"), "string_type")
    if len(value) > max_length:
        raise InvalidInput(field, _("is longer than %d characters") % max_length, "string_too_long")
    if not allow_empty and not value.strip():
        raise InvalidInput(field, _("must not be empty"), "string_too_short")
    if single_line and _CONTROL.search(value):
        raise InvalidInput(field, _("contains a control character"), "string_control")
    try:
        measure_text(value)
    except ValueRejected as rejection:
        raise _build_error(rejection, field) from None
    return str.__str__(value)


def parse_rate(value: Any, name: str) -> str:
    """Validate a rate such as `60/min`; return it in one spelling."""
    try:
        return str(rates.parse_rate(value))
    except ValueError:
        raise InvalidInput(name, _("must be a rate such as 60/min: a number, and s, min, h or day"), "rate") from None


def parse_integer(value: Any, field: Field, minimum: int = INT_MIN, maximum: int = INT_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field, _("must be a whole number"), "int_type")
    if not minimum <= value <= maximum:
        limits = {"minimum": minimum, "maximum": maximum}
        raise InvalidInput(field, _("must be from %(minimum)d to %(maximum)d") % limits, "int_range")
    return int.__int__(value)


def parse_number(
    value: Any, field: Field, minimum: float | None = None, maximum: float | None = None, *, above: float | None = None
) -> float:
    """Return a finite number; `above` is an exclusive minimum."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(field, _("must be a number"), "number_type")
    if (isinstance(value, int) and not INT_MIN <= value <= INT_MAX) or not math.isfinite(value):
        raise InvalidInput(field, _("must be a finite number within 64 bits"), "finite_number")
    if minimum is not None and value < minimum:
        raise InvalidInput(field, _("must be at least %s") % minimum, "number_range")
    if above is not None and value <= above:
        raise InvalidInput(field, _("must be more than %s") % above, "number_range")
    if maximum is not None and value > maximum:
        raise InvalidInput(field, _("must be at most %s") % maximum, "number_range")
    return value


def parse_boolean(value: Any, field: Field) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(field, _("must be true or false"), "bool_type")
    return value


def parse_time(value: Any, field: Field) -> datetime:
    """Return a time in UTC, from an aware datetime or ISO 8601 text with an offset."""
    try:
        return to_utc(value if isinstance(value, datetime) else _parse_iso(value))
    except ValueRejected as rejection:
        raise _build_error(rejection, field) from None


def parse_duration(text: str, field: Field) -> timedelta:
    """Parse a duration such as `90s`, `15m`, `1h30m`, `30d` or `2w`."""
    if len(text) > MAX_DURATION_LENGTH or not _DURATION.fullmatch(text):
        shown = escape_unprintable(text[:50])
        raise InvalidInput(field, _("must be a duration such as 90s, 15m, 1h30m or 30d, not %r") % shown, "duration")
    seconds = sum(float(number) * UNITS_SEC[unit] for number, unit in _DURATION_PART.findall(text))
    if not 0 < seconds <= MAX_DAYS * UNITS_SEC["d"]:
        raise _build_duration_range_error(field)
    return timedelta(seconds=seconds)


def parse_time_or_delay(value: Any, field: Field) -> datetime | timedelta:
    """Return a time in UTC; or, from a `timedelta` or text such as `+10m`, a delay that counts from the submission."""
    if isinstance(value, str) and value.startswith("+"):
        return parse_duration(value[1:], field)
    if not isinstance(value, str | datetime | timedelta):
        message = _("must be a time such as 2030-01-31T12:00:00Z, or a delay such as +10m")
        raise InvalidInput(field, message, "datetime_type")
    if not isinstance(value, timedelta):
        return parse_time(value, field)
    if not timedelta(0) < value <= timedelta(days=MAX_DAYS):
        raise _build_duration_range_error(field)
    return value


def _build_duration_range_error(field: Field) -> InvalidInput:
    return InvalidInput(field, _("must be more than 0 s and at most %d days") % MAX_DAYS, "duration_range")


def parse_json_value(value: Any, field: Field, *, max_depth: int | None = None, max_bytes: int | None = None) -> Any:
    """Return a copy made of plain JSON types; the limits are MAX_PARAMS_DEPTH and MAX_BODY_BYTES unless given."""
    depth = conf.MAX_PARAMS_DEPTH if max_depth is None else max_depth
    budget = ByteBudget(conf.MAX_BODY_BYTES if max_bytes is None else max_bytes)
    try:
        return copy_as_json(value, depth, budget)
    except ValueRejected as rejection:
        raise _build_error(rejection, field) from None
    except RecursionError:
        raise InvalidInput(field, _("is nested too deeply"), "too_deep") from None


def parse_json_object(
    value: Any, field: Field, *, max_depth: int | None = None, max_bytes: int | None = None
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(field, _("must be an object"), "dict_type")
    copy: dict[str, Any] = parse_json_value(value, field, max_depth=max_depth, max_bytes=max_bytes)
    return copy


def decode_json(data: bytes | str, field: Field = "body") -> Any:
    """Return the value of strict JSON text. The error's type is `json_invalid` if the text is not JSON at all."""
    try:
        text = data.decode() if isinstance(data, bytes) else data.encode().decode()  # both raise on surrogates
    except UnicodeError:
        raise InvalidInput(field, _("is not valid UTF-8"), "json_invalid") from None
    if text.startswith("\ufeff"):
        raise InvalidInput(field, _("begins with a byte order mark"), "json_invalid")
    try:
        value = _DECODER.decode(text)
        if _SUSPECT_ESCAPE.search(text):
            return copy_as_json(value, 1000, ByteBudget(OBJECT_BYTES * len(text)))
        return value
    except ValueRejected as rejection:
        raise _build_error(rejection, field) from None
    except RecursionError:
        raise InvalidInput(field, _("is nested too deeply"), "too_deep") from None
    except json.JSONDecodeError as error:
        where = {"problem": error.msg, "line": error.lineno, "column": error.colno}
        message = _("is not valid JSON: %(problem)s, line %(line)d, column %(column)d") % where
        raise InvalidInput(field, message, "json_invalid") from None


def require_few_containers(data: bytes, limit: int, field: Field = "body") -> None:
    """Raise InvalidInput if JSON text has more objects and lists than `limit`.

    They are counted before the text is decoded: as Python objects they take up to 28 times its size.
    """
    # The first count is cheap and includes brackets within strings, which are no containers.
    if _count_brackets(data) > limit and _count_brackets(_STRING.sub(b"", data)) > limit:
        raise InvalidInput(field, _("has more than %d objects and lists") % limit, "too_large")


def _count_brackets(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def parse_priority(value: Any, field: Field = "priority") -> int:
    if isinstance(value, str):
        number = PRIORITIES.get(value.upper())
        if number is None:
            raise InvalidInput(field, _("must be 0 to 100, LOW, NORMAL, HIGH or URGENT"), "priority")
        return number
    return parse_integer(value, field, 0, 100)


def parse_tenant(value: Any, field: Field = "tenant") -> str:
    if not isinstance(value, str) or not _TENANT.fullmatch(value):
        message = _("must be 1 to 64 letters, digits, dots, dashes or underscores")
        raise InvalidInput(field, message, "string_pattern")
    return str.__str__(value)


def parse_target(value: Any, field: Field = "target") -> str:
    key = parse_identifier(value, field)
    if "/" in key:
        raise InvalidInput(field, _("must not contain a slash"), "string_pattern")
    return key


def parse_identifier(value: Any, field: Field) -> str:
    """Return the name of a job type, a resource or an addon."""
    return parse_text(value, field, max_length=NAME_LENGTH, single_line=True)


def parse_reason(value: Any) -> str:
    """Return the reason that an operator gives for an action; empty if there is none."""
    return "" if value is None else parse_text(value, "reason", max_length=REASON_LENGTH, allow_empty=True)


def parse_tags(value: Any, field: Field = "tags") -> list[str]:
    return _parse_list(value, field, MAX_TAGS, TAG_LENGTH)


def parse_param_names(value: Any, field: Field) -> list[str]:
    return _parse_list(value, field, MAX_PARAM_NAMES, NAME_LENGTH)


def _parse_list(value: Any, field: Field, max_items: int, max_length: int) -> list[str]:
    """Return a list of different short texts."""
    if not isinstance(value, list | tuple):
        raise InvalidInput(field, _("must be a list"), "list_type")
    if len(value) > max_items:
        raise InvalidInput(field, _("has more than %d entries") % max_items, "too_long")
    path = _as_path(field)
    clean = [parse_text(item, [*path, i], max_length=max_length, single_line=True) for i, item in enumerate(value)]
    return list(dict.fromkeys(clean))


def parse_idempotency_key(value: Any, field: Field = "idempotency_key") -> str:
    if not isinstance(value, str) or not _PRINTABLE.fullmatch(value):
        raise InvalidInput(field, _("must be 1 to 255 printable ASCII characters"), "string_pattern")
    return str.__str__(value)


def parse_unique_key(value: Any, field: Field = "unique_key") -> str:
    return parse_text(value, field, max_length=UNIQUE_KEY_LENGTH, single_line=True)


def parse_choice(value: Any, field: Field, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidInput(field, _("must be one of %s") % ", ".join(choices), "enum")
    return str.__str__(value)


UNIQUE_VALIDATORS: dict[str, Callable[[Any, Any], Any]] = {
    "unique_key": parse_unique_key,
    "unique_until": partial(parse_choice, choices=[str(until) for until in UniqueUntil]),
    "on_conflict": partial(parse_choice, choices=[str(choice) for choice in OnConflict]),
}


def parse_constraints(value: Any, field: Field = "constraints") -> dict[str, bool]:
    if not isinstance(value, dict):
        raise InvalidInput(field, _("must be an object"), "dict_type")
    path = _as_path(field)
    for name in value:
        if name not in CONSTRAINTS:
            names = ", ".join(CONSTRAINTS)
            raise InvalidInput([*path, _describe_step(name)], _("is not one of %s") % names, "extra_forbidden")
    return {str(name): parse_boolean(item, [*path, name]) for name, item in value.items()}


def parse_id(value: Any) -> UUID:
    """Return a row's id. A malformed id belongs to no row: raise NotFound."""
    if isinstance(value, UUID):
        return value
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise NotFound(_("There is no job with this id."))
    return UUID(value)


def _build_error(rejection: ValueRejected, field: Field) -> InvalidInput:
    inner = [_describe_step(step) for step in reversed(rejection.path)]
    return InvalidInput([*_as_path(field), *inner], rejection.message, rejection.kind)


def _as_path(field: Field) -> list[str | int]:
    return [field] if isinstance(field, str) else list(field)


def _describe_step(step: Any) -> str | int:
    """Return a key of the rejected document as part of an error, which must be storable and short."""
    return step if type(step) is int else sanitize_text(step, 100)


def _parse_iso(value: Any) -> datetime:
    if not isinstance(value, str):
        raise ValueRejected(_lazy("must be a time such as 2030-01-31T12:00:00Z"), "datetime_type")
    try:
        # fromisoformat accepts more than the pattern: week dates, any separator and, in later versions, 24:00.
        if _MOMENT.fullmatch(value):
            return datetime.fromisoformat(value)
    except ValueError:
        pass
    raise ValueRejected(_lazy("is not a time such as 2030-01-31T12:00:00Z"), "datetime_parsing")


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        rejection = ValueRejected(_lazy("appears twice"), "duplicate_key")
        rejection.path.append(Counter(name for name, _item in pairs).most_common(1)[0][0])
        raise rejection
    return document


def _parse_json_int(digits: str) -> int:
    if len(digits) > 20 or not INT_MIN <= int(digits) <= INT_MAX:
        raise ValueRejected(_lazy("contains a whole number beyond 64 bits"), "int_size")
    return int(digits)


def _parse_json_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueRejected(_lazy("contains a number too large for JSON"), "finite_number")
    return value


def _reject_constant(name: str) -> Any:
    raise ValueRejected(_lazy("is not valid JSON: %s"), "json_invalid", name)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_keys,
    parse_int=_parse_json_int,
    parse_float=_parse_json_float,
    parse_constant=_reject_constant,
)
