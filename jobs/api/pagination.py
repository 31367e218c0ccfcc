"""Pages of a list: by the last row's own key, so that new rows shift nothing; no count, no offset.

Cursors are signed places in a list, good only for the same list, the same filters and the same tenant.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.core.signing import BadSignature, Signer
from django.db.models import Model, Q, QuerySet
from django.utils.translation import gettext as _

from jobs.api.auth import Caller
from jobs.api.request_params import Question, gated, whole
from jobs.errors import InvalidInput
from jobs.validation import fields as validation

DEFAULT, MOST = 50, 500
LONGEST_CURSOR = 1000
Place = list[Any]
Shape = Callable[[Any], dict[str, Any]]


def page_limit(default: int) -> tuple[Any, Any]:
    return gated(whole(1, MOST), {"type": "integer", "minimum": 1, "maximum": MOST, "default": default})


class Paged(Question):
    """What every list can be asked."""

    limit: Annotated[int, *page_limit(DEFAULT)] = DEFAULT
    cursor: Annotated[
        str | None,
        *gated(
            validation.parse_text,
            {"type": "string", "minLength": 1, "description": "`next_cursor` of the page before."},
        ),
    ] = None


@dataclass(frozen=True)
class Order:
    """A total order of a model's rows: field names, a minus for descending, the last one unique."""

    model: type[Model]
    fields: tuple[str, ...]

    def beyond(self, place: Place) -> Q:
        """The rows after this place."""
        found, same = Q(), Q()
        for name, value in zip(self.fields, place, strict=True):
            step = Q(**{f"{name[1:]}__lt": value}) if name.startswith("-") else Q(**{f"{name}__gt": value})
            found |= same & step
            same &= Q(**{name.removeprefix("-"): value})
        # Says nothing new, but in a form in which an index can start from it.
        first = self.fields[0]
        return found & Q(**{f"{first[1:]}__lte" if first.startswith("-") else f"{first}__gte": place[0]})

    def place(self, row: Model) -> Place:
        """Return the cursor key of a row, in types that JSON has."""
        values = [getattr(row, name.removeprefix("-")) for name in self.fields]
        return [str(value) if isinstance(value, datetime | UUID) else value for value in values]

    def restored(self, place: Place) -> Place:
        """Our own words back from a cursor."""
        if len(place) != len(self.fields):
            raise InvalidInput(["query", "cursor"], _("is not a cursor of this list"), "cursor")
        names = [name.removeprefix("-") for name in self.fields]
        columns: list[Any] = [
            self.model._meta.pk if name == "pk" else self.model._meta.get_field(name) for name in names
        ]
        return [column.to_python(value) for column, value in zip(columns, place, strict=True)]


def page(
    caller: Caller, operation: str, asked: Paged, rows: QuerySet[Any], order: Order, shape: Shape, *, of: Any = None
) -> dict[str, Any]:
    """One page of `rows` and the cursor for the next. `of` is what the list belongs to, if not only to a tenant."""
    bond = bound_to(operation, caller.tenant, {**asked.given_fields(), "of": of})
    if asked.cursor is not None:
        rows = rows.filter(order.beyond(order.restored(place_of(asked.cursor, bond))))
    found = list(rows.order_by(*order.fields)[: asked.limit + 1])
    return _page(found, asked.limit, bond, order.place, shape)


def page_in_memory(
    caller: Caller, operation: str, asked: Paged, rows: Sequence[Any], place: Callable[[Any], Place], shape: Shape
) -> dict[str, Any]:
    """As `page`, for a few rows that are in memory as a whole and stand in the order of their `place`."""
    bond = bound_to(operation, caller.tenant, asked.given_fields())
    if asked.cursor is not None:
        after = place_of(asked.cursor, bond)
        rows = [row for row in rows if place(row) > after]
    return _page(rows, asked.limit, bond, place, shape)


def _page(rows: Sequence[Any], limit: int, bond: str, place: Callable[[Any], Place], shape: Shape) -> dict[str, Any]:
    next_cursor = seal(bond, place(rows[limit - 1])) if len(rows) > limit else None
    return {"items": [shape(row) for row in rows[:limit]], "next_cursor": next_cursor}


def page_of_ids(
    caller: Caller,
    operation: str,
    asked: Paged,
    read: Callable[[Place | None], tuple[list[UUID], Place | None]],
    show: Callable[[list[UUID]], list[dict[str, Any]]],
) -> dict[str, Any]:
    """As `page`, for a list that is read along an index: `read` finds ids from a place on, and where to go on."""
    bond = bound_to(operation, caller.tenant, asked.given_fields())
    ids, further = read(None if asked.cursor is None else place_of(asked.cursor, bond))
    return {"items": show(ids), "next_cursor": None if further is None else seal(bond, further)}


def bound_to(operation: str, tenant: str | None, asked: dict[str, Any]) -> str:
    """What a cursor belongs to, in short. `limit` and `cursor` are no filters: a page may change its size."""
    filters = {name: value for name, value in sorted(asked.items()) if name not in ("limit", "cursor")}
    text = json.dumps([operation, tenant, filters], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def seal(bond: str, place: Place) -> str:
    return Signer(salt="jobs.api.cursor").sign_object([bond, place])


def place_of(cursor: str, bond: str) -> Place:
    """The place that a cursor names, if it is ours and for this list."""
    try:
        if len(cursor) > LONGEST_CURSOR:
            raise BadSignature
        sealed, place = Signer(salt="jobs.api.cursor").unsign_object(cursor)
    except (BadSignature, ValueError, TypeError):
        raise InvalidInput(["query", "cursor"], _("is not a cursor of this list"), "cursor") from None
    if sealed != bond or not isinstance(place, list):
        message = _("belongs to another list, other filters or another tenant")
        raise InvalidInput(["query", "cursor"], message, "cursor")
    return place
