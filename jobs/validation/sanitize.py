"""Make any value storable: a result is never lost because a handler returned or raised an unusual value."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from jobs.validation.json import OBJECT_BYTES, UNSTORABLE, ByteBudget, ValueRejected, copy_as_json

MAX_BYTES = 2**20
MAX_DEPTH = 32
NODE_BYTES = 8  # more than JSON needs; bounds the time spent on a tree of many tiny nodes
PREVIEW_LENGTH = 1000
EXIT_CODE_LIMIT = 2**31  # positive and negative
ELLIPSIS = "…"

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 200


def sanitize_text(value: object, max_length: int = 10_000) -> str:
    """Return any value as text of at most `max_length` characters. Never raises."""
    try:
        text = str.__str__(value if isinstance(value, str) else str(value))
    except Exception:  # noqa: BLE001
        text = f"<{type(value).__name__}>"
    if len(text) > max_length:
        text = (text[: max(max_length - 1, 0)] + ELLIPSIS)[:max_length]
    return UNSTORABLE.sub("\ufffd", text)


def sanitize_exit_code(value: object, default: int) -> int:
    """Return `value` if the column can store it, else `default`. Never raises."""
    return int(value) if isinstance(value, int) and -EXIT_CODE_LIMIT <= value < EXIT_CODE_LIMIT else default


def sanitize_json(value: object, on_change: Callable[[], None] = lambda: None) -> Any:
    """Return the nearest JSON value; objects that JSON cannot represent become their repr. Never raises.

    `on_change` is called if that is not the value itself.
    """
    for copy in (copy_as_json, _sanitize_node):
        try:
            return copy(value, MAX_DEPTH, ByteBudget(MAX_BYTES))
        except Exception as error:  # noqa: BLE001  an object in it may raise anything
            if copy is copy_as_json:
                on_change()
            if isinstance(error, ValueRejected) and error.kind == "too_large":
                break
    kind = sanitize_text(type(value).__name__, 200)
    return {"truncated": True, "type": kind, "preview": sanitize_text(_short_repr(value), PREVIEW_LENGTH)}


def _sanitize_node(value: Any, depth: int, budget: ByteBudget, ancestors: tuple[int, ...] = ()) -> Any:
    """Copy one node; a container that contains itself becomes text."""
    if isinstance(value, Enum):
        value = value.value
    if depth > 0 and id(value) not in ancestors:
        path = (*ancestors, id(value))
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            budget.spend(OBJECT_BYTES)
        if isinstance(value, Mapping):
            entries = list(value.items())
            return {_sanitize_key(key, budget): _sanitize_node(item, depth - 1, budget, path) for key, item in entries}
        if isinstance(value, list | tuple | set | frozenset):
            return [_sanitize_node(item, depth - 1, budget, path) for item in list(value)]
    try:
        leaf = value if isinstance(value, str) else copy_as_json(value, 0, budget)
    except Exception:  # noqa: BLE001
        leaf = _short_repr(value)
    budget.spend(NODE_BYTES)
    return _sanitize_key(leaf, budget) if isinstance(leaf, str) else leaf


def _sanitize_key(key: Any, budget: ByteBudget) -> str:
    text = sanitize_text(key, budget.size)
    budget.spend(len(text.encode()) + 2)
    return text


def _short_repr(value: object) -> str:
    """Return the repr of a value; the items of a container are limited before their repr is made."""
    try:
        return _repr.repr(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def escape_unprintable(text: str) -> str:
    """Escape unprintable characters: input must not start a new line in a log or move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
