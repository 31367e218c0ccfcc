"""Copy values as plain JSON that both databases can store; raise ValueRejected for any other value."""

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
OBJECT_BYTES, LIST_BYTES = 16, 8  # the least that an object or a list costs, however little JSON needs for it
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
# One day from either end of the calendar, so that every time zone can display the time.
EARLIEST = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)


class ValueRejected(Exception):
    """A value that cannot be stored, and why. `path` lists the keys and indexes from the leaf upwards."""

    def __init__(self, reason: StrPromise, kind: str, detail: object = None) -> None:
        super().__init__(kind)
        self.reason, self.kind, self.detail = reason, kind, detail
        self.path: list[Any] = []

    @property
    def message(self) -> str:
        """The reason, translated on demand: sanitizing a value discards it."""
        return str(self.reason) if self.detail is None else str(self.reason) % self.detail


class ByteBudget:
    """The bytes that the rest of a tree may take, as the minimum that JSON needs for it.

    A shared node counts each time it appears, so that a small graph cannot expand into a huge tree. A container
    costs at least OBJECT_BYTES or LIST_BYTES: Python takes 70 to 200 bytes for one, while `{}` needs three in JSON.
    """

    __slots__ = ("remaining", "size")

    def __init__(self, size: int) -> None:
        self.size = self.remaining = size

    def spend(self, amount: int) -> None:
        self.remaining -= amount
        if self.remaining < 0:
            raise ValueRejected(_("is larger than %d bytes"), "too_large", self.size)


def copy_as_json(value: Any, depth: int, budget: ByteBudget) -> Any:
    """Return a copy, or raise ValueRejected. `depth` is the number of containers that may be nested here.

    Bulk submission calls this and the next two functions for every value: they compare exact types, handle text
    inline, and leave rare types to the functions below.
    """
    kind = type(value)
    if kind is dict:
        return _copy_dict(value, depth, budget)
    if kind is list or kind is tuple:
        return _copy_list(value, depth, budget)
    if value is None or kind is bool:
        return value
    if kind is str:
        budget.spend(measure_text(value))
        return value
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:
            raise ValueRejected(_("is a whole number beyond 64 bits"), "int_size")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise ValueRejected(_("is not a finite number"), "finite_number")
        return value
    if isinstance(value, Enum):
        return copy_as_json(value.value, depth, budget)
    if isinstance(value, dict):
        return _copy_dict(value, depth, budget)
    if isinstance(value, list | tuple):
        return _copy_list(value, depth, budget)
    return copy_as_json(_to_scalar(value), depth, budget)


def _copy_dict(value: dict[Any, Any], depth: int, budget: ByteBudget) -> dict[str, Any]:
    if depth <= 0:
        raise _build_depth_error()
    copy: dict[str, Any] = {}
    size = 2
    key: Any = None
    try:
        for key, item in value.items():
            name = key if type(key) is str else _to_key(key)
            size += len(name) + 4 if name.isascii() and "\0" not in name else measure_text(name)
            if type(item) is str and item.isascii() and "\0" not in item:
                size += len(item) + 2
                copy[name] = item
            else:
                copy[name] = copy_as_json(item, depth - 1, budget)
    except ValueRejected as rejection:
        rejection.path.append(key)
        raise
    budget.spend(size if size > OBJECT_BYTES else OBJECT_BYTES)
    return copy


def _copy_list(value: Any, depth: int, budget: ByteBudget) -> list[Any]:
    if depth <= 0:
        raise _build_depth_error()
    copy: list[Any] = []
    try:
        for item in value:
            copy.append(copy_as_json(item, depth - 1, budget))  # noqa: PERF401  its length is the index of a rejected item
    except ValueRejected as rejection:
        rejection.path.append(len(copy))
        raise
    size = 2 * len(copy) + 2
    budget.spend(size if size > LIST_BYTES else LIST_BYTES)
    return copy


def measure_text(text: str) -> int:
    """Return the size of a JSON string in bytes, or raise ValueRejected if a database cannot store it."""
    if UNSTORABLE.search(text):
        raise ValueRejected(_("contains a NUL character or half of a surrogate pair"), "string_unicode")
    return len(text.encode()) + 2


def to_utc(value: datetime) -> datetime:
    """Return an aware time in UTC, or raise ValueRejected."""
    try:
        if value.utcoffset() is None:
            raise ValueRejected(_("must have an offset from UTC, such as Z or +02:00"), "timezone_aware")
        moment = value.astimezone(UTC)
        if EARLIEST <= moment <= LATEST:
            return moment
    except (OverflowError, ValueError):
        pass
    raise ValueRejected(_("is outside the years 1 to 9999"), "datetime_range")


def _to_scalar(value: Any) -> str | int | float:
    """Return times, decimals and ids as text, and instances of subclasses as their base type."""
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case datetime():
            return to_utc(value).isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case Decimal() if value.is_finite():
            return str(value)
        case UUID():
            return str(value)
    raise ValueRejected(_("is not a JSON value: %s"), "json_type", type(value).__name__)


def _to_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueRejected(_("has a key that is not text"), "json_type")
    return str.__str__(key)


def _build_depth_error() -> ValueRejected:
    return ValueRejected(_("is nested too deeply"), "too_deep")
