"""A copy of a value as plain JSON, made only of what both databases can store; anything else is refused."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
# A day from either end of the calendar: every time zone can still show it.
EARLIEST = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


class Refused(Exception):
    """Why a value is not taken. `path` leads to the place, gathered from the leaf upwards."""

    def __init__(self, reason: StrPromise, kind: str, detail: object = None) -> None:
        super().__init__(kind)
        self.reason, self.kind, self.detail = reason, kind, detail
        self.path: list[Any] = []

    @property
    def message(self) -> str:
        """Translated when somebody reads it, and not while a value is salvaged."""
        return str(self.reason) if self.detail is None else str(self.reason) % self.detail


class Room:
    """The bytes a tree may still take, at the least that JSON needs for it.

    A node that is shared counts wherever it appears, so that no small graph unfolds into a huge tree.
    """

    __slots__ = ("left", "size")

    def __init__(self, size: int) -> None:
        self.size = self.left = size

    def take(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise Refused(_("is larger than %d bytes"), "too_large", self.size)


def strict_copy(value: Any, depth: int, room: Room) -> Any:
    """The copy, or Refused. `depth` says how many containers may be nested here.

    Bulk submission runs every value through this and the next two functions: they look at exact types, treat
    text in place, and leave all that is rare to the functions below them.
    """
    kind = type(value)
    if kind is dict:
        return _copy_dict(value, depth, room)
    if kind is list or kind is tuple:
        return _copy_list(value, depth, room)
    if value is None or kind is bool:
        return value
    if kind is str:
        room.take(stored_size(value))
        return value
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise Refused(_("is a whole number beyond 64 bits"), "int_size")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise Refused(_("is not a finite number"), "finite_number")
        return value
    if isinstance(value, Enum):
        return strict_copy(value.value, depth, room)
    if isinstance(value, dict):
        return _copy_dict(value, depth, room)
    if isinstance(value, list | tuple):
        return _copy_list(value, depth, room)
    return strict_copy(_plain(value), depth, room)


def _copy_dict(value: dict[Any, Any], depth: int, room: Room) -> dict[str, Any]:
    if depth <= 0:
        raise _too_deep()
    copy: dict[str, Any] = {}
    size = 2
    key: Any = None
    try:
        for key, item in value.items():
            name = key if type(key) is str else _plain_key(key)
            size += len(name) + 4 if name.isascii() and "\0" not in name else stored_size(name)
            if type(item) is str and item.isascii() and "\0" not in item:
                size += len(item) + 2
                copy[name] = item
            else:
                copy[name] = strict_copy(item, depth - 1, room)
    except Refused as refusal:
        refusal.path.append(key)
        raise
    room.take(size)
    return copy


def _copy_list(value: Any, depth: int, room: Room) -> list[Any]:
    if depth <= 0:
        raise _too_deep()
    copy: list[Any] = []
    try:
        for item in value:
            copy.append(strict_copy(item, depth - 1, room))  # noqa: PERF401  its length is the index of a refused item
    except Refused as refusal:
        refusal.path.append(len(copy))
        raise
    room.take(2 * len(copy) + 2)
    return copy


def stored_size(text: str) -> int:
    """The bytes of a string, or Refused if a database cannot store it."""
    if UNSTORABLE.search(text):
        raise Refused(_("contains a NUL character or half of a surrogate pair"), "string_unicode")
    return len(text.encode()) + 2


def utc(value: datetime) -> datetime:
    try:
        moment = value.astimezone(UTC) if value.utcoffset() is not None else None
    except (OverflowError, ValueError):
        raise _out_of_calendar() from None
    if moment is None:
        raise Refused(_("must say its offset from UTC, such as Z or +02:00"), "timezone_aware")
    if not EARLIEST <= moment <= LATEST:
        raise _out_of_calendar()
    return moment


def _plain(value: Any) -> str | int | float:
    """What Python says with a type of its own and JSON says with text; and subclasses as what they stand for."""
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case datetime():
            return utc(value).isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case Decimal() if value.is_finite():
            return str(value)
        case UUID():
            return str(value)
    raise Refused(_("is not a JSON value: %s"), "json_type", type(value).__name__)


def _plain_key(key: Any) -> str:
    if not isinstance(key, str):
        raise Refused(_("has a key that is not text"), "json_type")
    return str.__str__(key)


def _too_deep() -> Refused:
    return Refused(_("is nested too deeply"), "too_deep")


def _out_of_calendar() -> Refused:
    return Refused(_("is outside the years 1 to 9999"), "datetime_range")
