"""The one gate for input: API, CLI, admin, services and remote results all come through here.

Each function returns the clean value or raises InvalidInput naming the field; `salvage_*` never raise.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound
from jobs.validation.json import INT_MAX, INT_MIN, Refused, Room, stored_size, strict_copy, utc
from jobs.validation.sanitize import salvage_json as salvage_json
from jobs.validation.sanitize import salvage_text as salvage_text

Field = str | Sequence[str | int]

PRIORITIES = {"LOW": 25, "NORMAL": 50, "HIGH": 75, "URGENT": 100}
CONSTRAINTS = ("cpu_heavy", "disk_write_heavy", "network_heavy")
MAX_TAGS, TAG_LENGTH, NAME_LENGTH, REASON_LENGTH = 32, 64, 200, 2000
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PRINTABLE = re.compile(r"[\x20-\x7e]{1,255}")
_ID = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
# Only an escape can bring a NUL or half a surrogate pair into a string of well-formed JSON.
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


def text(
    value: Any, field: Field, *, max_length: int = 10_000, allow_empty: bool = False, single_line: bool = False
) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, _("must be text"), "string_type")
    if len(value) > max_length:
        raise InvalidInput(field, _("is longer than %d characters") % max_length, "string_too_long")
    if not allow_empty and not value.strip():
        raise InvalidInput(field, _("must not be empty"), "string_too_short")
    if single_line and _CONTROL.search(value):
        raise InvalidInput(field, _("contains a control character"), "string_control")
    try:
        stored_size(value)
    except Refused as refusal:
        raise _invalid(refusal, field) from None
    return str.__str__(value)


def integer(value: Any, field: Field, minimum: int = INT_MIN, maximum: int = INT_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field, _("must be a whole number"), "int_type")
    if not minimum <= value <= maximum:
        limits = {"minimum": minimum, "maximum": maximum}
        raise InvalidInput(field, _("must be from %(minimum)d to %(maximum)d") % limits, "int_range")
    return int.__int__(value)


def number(
    value: Any,
    field: Field,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    above: float | None = None,
) -> float:
    """A finite number; `above` is a minimum that is itself too small."""
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


def boolean(value: Any, field: Field) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(field, _("must be true or false"), "bool_type")
    return value


def moment(value: Any, field: Field) -> datetime:
    """A time in UTC, from an aware datetime or ISO 8601 text with an offset."""
    try:
        return utc(value if isinstance(value, datetime) else _parse_iso(value))
    except Refused as refusal:
        raise _invalid(refusal, field) from None


def json_value(value: Any, field: Field, *, max_depth: int | None = None, max_bytes: int | None = None) -> Any:
    """A copy of plain JSON types; the limits are MAX_PARAMS_DEPTH and MAX_BODY_BYTES unless given."""
    depth = conf.MAX_PARAMS_DEPTH if max_depth is None else max_depth
    room = Room(conf.MAX_BODY_BYTES if max_bytes is None else max_bytes)
    try:
        return strict_copy(value, depth, room)
    except Refused as refusal:
        raise _invalid(refusal, field) from None
    except RecursionError:
        raise InvalidInput(field, _("is nested too deeply"), "too_deep") from None


def json_object(
    value: Any, field: Field, *, max_depth: int | None = None, max_bytes: int | None = None
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(field, _("must be an object"), "dict_type")
    copy: dict[str, Any] = json_value(value, field, max_depth=max_depth, max_bytes=max_bytes)
    return copy


def decode_json(data: bytes | str, field: Field = "body") -> Any:
    """Strict JSON text. The error's type is `json_invalid` where the text is not JSON at all."""
    try:
        written = data.decode() if isinstance(data, bytes) else data.encode().decode()  # either refuses surrogates
    except UnicodeError:
        raise InvalidInput(field, _("is not valid UTF-8"), "json_invalid") from None
    if written.startswith("\ufeff"):
        raise InvalidInput(field, _("begins with a byte order mark"), "json_invalid")
    try:
        value = _DECODER.decode(written)
        return strict_copy(value, 1000, Room(4 * len(written) + 2)) if _SUSPECT_ESCAPE.search(written) else value
    except Refused as refusal:
        raise _invalid(refusal, field) from None
    except RecursionError:
        raise InvalidInput(field, _("is nested too deeply"), "too_deep") from None
    except json.JSONDecodeError as error:
        where = {"problem": error.msg, "line": error.lineno, "column": error.colno}
        message = _("is not valid JSON: %(problem)s, line %(line)d, column %(column)d") % where
        raise InvalidInput(field, message, "json_invalid") from None


def priority(value: Any, field: Field = "priority") -> int:
    if isinstance(value, str):
        known = PRIORITIES.get(value.upper())
        if known is None:
            raise InvalidInput(field, _("must be 0 to 100, LOW, NORMAL, HIGH or URGENT"), "priority")
        return known
    return integer(value, field, 0, 100)


def tenant(value: Any, field: Field = "tenant") -> str:
    if not isinstance(value, str) or not _TENANT.fullmatch(value):
        message = _("must be 1 to 64 letters, digits, dots, dashes or underscores")
        raise InvalidInput(field, message, "string_pattern")
    return str.__str__(value)


def target(value: Any, field: Field = "target") -> str:
    key = identifier(value, field)
    if "/" in key:
        raise InvalidInput(field, _("must not contain a slash"), "string_pattern")
    return key


def identifier(value: Any, field: Field) -> str:
    """The name of a job type, a resource, an addon."""
    return text(value, field, max_length=NAME_LENGTH, single_line=True)


def reason(value: Any) -> str:
    """Why somebody did something, in their words; none given is empty."""
    return "" if value is None else text(value, "reason", max_length=REASON_LENGTH, allow_empty=True)


def tags(value: Any, field: Field = "tags") -> list[str]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(field, _("must be a list"), "list_type")
    if len(value) > MAX_TAGS:
        raise InvalidInput(field, _("has more than %d entries") % MAX_TAGS, "too_long")
    place = _place(field)
    clean = [text(tag, [*place, i], max_length=TAG_LENGTH, single_line=True) for i, tag in enumerate(value)]
    return list(dict.fromkeys(clean))


def idempotency_key(value: Any, field: Field = "idempotency_key") -> str:
    if not isinstance(value, str) or not _PRINTABLE.fullmatch(value):
        raise InvalidInput(field, _("must be 1 to 255 printable ASCII characters"), "string_pattern")
    return str.__str__(value)


def constraints(value: Any, field: Field = "constraints") -> dict[str, bool]:
    if not isinstance(value, dict):
        raise InvalidInput(field, _("must be an object"), "dict_type")
    place = _place(field)
    for name in value:
        if name not in CONSTRAINTS:
            known = ", ".join(CONSTRAINTS)
            raise InvalidInput([*place, _describe_step(name)], _("is not one of %s") % known, "extra_forbidden")
    return {str(name): boolean(item, [*place, name]) for name, item in value.items()}


def job_id(value: Any) -> UUID:
    """A malformed id is the id of no job."""
    if isinstance(value, UUID):
        return value
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise NotFound(_("There is no job with this id."))
    return UUID(value)


def _invalid(refusal: Refused, field: Field) -> InvalidInput:
    inner = [_describe_step(step) for step in reversed(refusal.path)]
    return InvalidInput([*_place(field), *inner], refusal.message, refusal.kind)


def _place(field: Field) -> list[str | int]:
    return [field] if isinstance(field, str) else list(field)


def _describe_step(step: Any) -> str | int:
    """A key of somebody's document as part of our answer, which must itself be storable and short."""
    return step if type(step) is int else salvage_text(step, 100)


def _parse_iso(value: Any) -> datetime:
    if not isinstance(value, str):
        raise Refused(_lazy("must be a time such as 2030-01-31T12:00:00Z"), "datetime_type")
    try:
        # The pattern is narrower than fromisoformat, which takes week dates, any separator and, later, 24:00.
        if _MOMENT.fullmatch(value):
            return datetime.fromisoformat(value)
    except ValueError:
        pass
    raise Refused(_lazy("is not a time such as 2030-01-31T12:00:00Z"), "datetime_parsing")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        refusal = Refused(_lazy("appears twice"), "duplicate_key")
        refusal.path.append(Counter(name for name, _item in pairs).most_common(1)[0][0])
        raise refusal
    return found


def _int(digits: str) -> int:
    if len(digits) > 20 or not INT_MIN <= int(digits) <= INT_MAX:
        raise Refused(_lazy("contains a whole number beyond 64 bits"), "int_size")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise Refused(_lazy("contains a number too large for JSON"), "finite_number")
    return value


def _constant(name: str) -> Any:
    raise Refused(_lazy("is not valid JSON: %s"), "json_invalid", name)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_int, parse_float=_float, parse_constant=_constant)
