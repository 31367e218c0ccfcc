"""What handlers return and raise, made storable at any price: a finish is never lost to an odd value."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

from jobs.validation.json import UNSTORABLE, Refused, Room, strict_copy

MAX_BYTES = 2**20
MAX_DEPTH = 32
NODE_BYTES = 8  # more than JSON needs: it bounds the time spent on an odd tree of tiny nodes
PREVIEW_LENGTH = 1000
EXIT_CODES = 2**31  # to either side
ELLIPSIS = "…"

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 200


def salvage_text(value: object, max_length: int = 10_000) -> str:
    """The text of anything, at most `max_length` characters. Never raises."""
    text = _text(value)
    if len(text) > max_length:
        text = (text[: max(max_length - 1, 0)] + ELLIPSIS)[:max_length]
    return UNSTORABLE.sub("\ufffd", text)


def salvage_exit_code(value: object, otherwise: int) -> int:
    """`value`, if it is a number that a run can keep. Never raises."""
    return int(value) if isinstance(value, int) and -EXIT_CODES <= value < EXIT_CODES else otherwise


def salvage_json(value: object, *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The JSON value nearest to it; what JSON cannot say becomes its repr. Never raises."""
    for copy in (strict_copy, _rescue):
        try:
            return copy(value, max_depth, Room(max_bytes))
        except Exception as error:  # noqa: BLE001  any odd object may be in there
            if isinstance(error, Refused) and error.kind == "too_large":
                break
    kind = salvage_text(type(value).__name__, 200)
    return {"truncated": True, "type": kind, "preview": salvage_text(_short_repr(value), PREVIEW_LENGTH)}


def _rescue(value: Any, depth: int, room: Room, above: tuple[int, ...] = ()) -> Any:
    """`above` holds the containers on the way here: one that contains itself ends as text."""
    if isinstance(value, Enum):
        value = value.value
    if depth > 0 and id(value) not in above:
        inside = (*above, id(value))
        if isinstance(value, Mapping):
            entries = list(value.items())
            return {_rescue_key(key, room): _rescue(item, depth - 1, room, inside) for key, item in entries}
        if isinstance(value, list | tuple | set | frozenset):
            return [_rescue(item, depth - 1, room, inside) for item in list(value)]
    try:
        leaf = value if isinstance(value, str) else strict_copy(value, 0, room)
    except Exception:  # noqa: BLE001
        leaf = _short_repr(value)
    room.take(NODE_BYTES)
    return _rescue_key(leaf, room) if isinstance(leaf, str) else leaf


def _rescue_key(key: Any, room: Room) -> str:
    text = salvage_text(key, room.size)
    room.take(len(text.encode()) + 2)
    return text


def _text(value: object) -> str:
    try:
        return str.__str__(value if isinstance(value, str) else str(value))
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def _short_repr(value: object) -> str:
    """Its repr, bounded before it is made where the value is a container."""
    try:
        return _short.repr(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def escape_unprintable(text: str) -> str:
    """Escape what is not printable: a value from outside must not start a line of its own or move the cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
