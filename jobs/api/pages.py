"""Pages of a list: by the last row's own key, so that new rows shift nothing; no count, no offset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from django.db.models import Model, Q, QuerySet
from django.utils.translation import gettext as _

from jobs import parsing
from jobs.api import cursors
from jobs.api.callers import Caller
from jobs.api.queries import Question, gated, whole
from jobs.errors import InvalidInput

DEFAULT, MOST = 50, 500


class Paged(Question):
    """What every list can be asked."""

    limit: Annotated[
        int,
        *gated(whole(1, MOST), {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT}),
    ] = DEFAULT
    cursor: Annotated[
        str | None,
        *gated(parsing.text, {"type": "string", "minLength": 1, "description": "`next_cursor` of the page before."}),
    ] = None


@dataclass(frozen=True)
class Order:
    """A total order of a model's rows: field names, a minus for descending, the last one unique."""

    model: type[Model]
    fields: tuple[str, ...]

    def beyond(self, place: Sequence[Any]) -> Q:
        """The rows after this place."""
        found, same = Q(), Q()
        for name, value in zip(self.fields, place, strict=True):
            step = Q(**{f"{name[1:]}__lt": value}) if name.startswith("-") else Q(**{f"{name}__gt": value})
            found |= same & step
            same &= Q(**{name.removeprefix("-"): value})
        return found & self._not_before(place[0])

    def place(self, row: Model) -> list[Any]:
        return self.plain([getattr(row, name.removeprefix("-")) for name in self.fields])

    def plain(self, values: Sequence[Any]) -> list[Any]:
        """A place in words that a cursor can carry."""
        return [_plain(value) for value in values]

    def restored(self, place: Sequence[Any]) -> list[Any]:
        """Our own words back from a cursor."""
        if len(place) != len(self.fields):
            raise InvalidInput(["query", "cursor"], _("is not a cursor of this list"), "cursor")
        return [self._column(name).to_python(value) for name, value in zip(self.fields, place, strict=True)]

    def _not_before(self, value: Any) -> Q:
        """Says nothing new, but in a form in which an index can start from it."""
        name = self.fields[0]
        return Q(**{f"{name[1:]}__lte": value}) if name.startswith("-") else Q(**{f"{name}__gte": value})

    def _column(self, name: str) -> Any:
        plain = name.removeprefix("-")
        return self.model._meta.pk if plain == "pk" else self.model._meta.get_field(plain)


def page(
    caller: Caller,
    operation: str,
    asked: Paged,
    rows: QuerySet[Any],
    order: Order,
    shape: Callable[[Any], dict[str, Any]],
    *,
    of: Any = None,
) -> dict[str, Any]:
    """One page of `rows` and the cursor for the next. `of` is what the list belongs to, if not only to a tenant."""
    bond = cursors.bound_to(operation, caller.tenant, {**asked.asked(), "of": of})
    if asked.cursor is not None:
        rows = rows.filter(order.beyond(order.restored(cursors.place_of(asked.cursor, bond))))
    found = list(rows.order_by(*order.fields)[: asked.limit + 1])
    more = len(found) > asked.limit
    next_cursor = cursors.seal(bond, order.place(found[asked.limit - 1])) if more else None
    return {"items": [shape(row) for row in found[: asked.limit]], "next_cursor": next_cursor}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value
