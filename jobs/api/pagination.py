"""Keyset pagination: a cursor holds the key of the last row, so that new rows shift nothing; no count, no offset.

Cursors are signed and valid only for the same list, the same filters and the same tenant. Pages are bounded in bytes as
in rows: see `jobs.models.payload`.
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

from jobs.api.auth import Principal
from jobs.api.request_params import QueryParams, integer_between, validated_by
from jobs.errors import InvalidInput
from jobs.models.payload import count_fitting, may_exceed_page, read_by_id, read_small
from jobs.validation import fields as validation

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 50, 500
CURSOR = {"type": "string", "minLength": 1, "description": "`next_cursor` of the page before."}
MAX_CURSOR_LENGTH = 1000
CursorKey = list[Any]
IdPage = tuple[list[UUID], CursorKey | None]  # and the key of the next page, or None at the end
Serializer = Callable[[Any], dict[str, Any]]


def limit_param(default: int) -> tuple[Any, Any]:
    """Return the validator and JSON Schema of the parameter `limit`."""
    schema = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": default}
    return validated_by(integer_between(1, MAX_PAGE_SIZE), schema)


class Paged(QueryParams):
    """The parameters of every list."""

    limit: Annotated[int, *limit_param(DEFAULT_PAGE_SIZE)] = DEFAULT_PAGE_SIZE
    cursor: Annotated[str | None, *validated_by(validation.parse_text, CURSOR)] = None


@dataclass(frozen=True)
class Order:
    """A total order of a model's rows: field names, a minus for descending, the last one unique."""

    model: type[Model]
    fields: tuple[str, ...]

    def condition_after(self, key: CursorKey) -> Q:
        """Return the condition of the rows after this key."""
        after, same = Q(), Q()
        for name, value in zip(self.fields, key, strict=True):
            step = Q(**{f"{name[1:]}__lt": value}) if name.startswith("-") else Q(**{f"{name}__gt": value})
            after |= same & step
            same &= Q(**{name.removeprefix("-"): value})
        # Redundant, but lets an index scan start at the key.
        first = self.fields[0]
        return after & Q(**{f"{first[1:]}__lte" if first.startswith("-") else f"{first}__gte": key[0]})

    def get_cursor_key(self, row: Model) -> CursorKey:
        """Return the cursor key of a row, in types that JSON has."""
        values = [getattr(row, name.removeprefix("-")) for name in self.fields]
        return [str(value) if isinstance(value, datetime | UUID) else value for value in values]

    def parse_cursor_key(self, key: CursorKey) -> CursorKey:
        """Return the key of a cursor in the types of the columns."""
        if len(key) != len(self.fields):
            raise InvalidInput(["query", "cursor"], _("is not a cursor of this list"), "cursor")
        names = [name.removeprefix("-") for name in self.fields]
        columns: list[Any] = [
            self.model._meta.pk if name == "pk" else self.model._meta.get_field(name) for name in names
        ]
        return [column.to_python(value) for column, value in zip(columns, key, strict=True)]


def paginate(
    principal: Principal,
    operation: str,
    query: Paged,
    rows: QuerySet[Any],
    order: Order,
    serialize: Serializer,
    *,
    parent: Any = None,
    payload: Sequence[str] = (),
) -> dict[str, Any]:
    """Return one page of `rows` and the cursor of the next. `parent` is the id of the object that has the list.

    `payload` names the columns that may be large.
    """
    scope = hash_cursor_scope(operation, principal.tenant, {**query.given_fields(), "of": parent})
    if query.cursor is not None:
        rows = rows.filter(order.condition_after(order.parse_cursor_key(parse_cursor(query.cursor, scope))))
    rows, limit = rows.order_by(*order.fields), query.limit
    if may_exceed_page(limit, payload):
        limit = count_fitting(rows, list(rows.values_list("pk", flat=True)[:limit]), payload) or limit
    return _build_page(read_small(rows, payload, limit + 1), limit, scope, order.get_cursor_key, serialize)


def paginate_list(
    principal: Principal,
    operation: str,
    query: Paged,
    rows: Sequence[Any],
    get_cursor_key: Callable[[Any], CursorKey],
    serialize: Serializer,
) -> dict[str, Any]:
    """Same as `paginate`, for rows in memory that are sorted by their cursor key."""
    scope = hash_cursor_scope(operation, principal.tenant, query.given_fields())
    if query.cursor is not None:
        last = parse_cursor(query.cursor, scope)
        rows = [row for row in rows if get_cursor_key(row) > last]
    return _build_page(rows, query.limit, scope, get_cursor_key, serialize)


def _build_page(
    rows: Sequence[Any], limit: int, scope: str, get_cursor_key: Callable[[Any], CursorKey], serialize: Serializer
) -> dict[str, Any]:
    next_cursor = sign_cursor(scope, get_cursor_key(rows[limit - 1])) if len(rows) > limit else None
    return {"items": [serialize(row) for row in rows[:limit]], "next_cursor": next_cursor}


def paginate_ids(
    principal: Principal,
    operation: str,
    query: Paged,
    read_ids: Callable[[CursorKey | None, int], IdPage],
    rows: QuerySet[Any],
    payload: Sequence[str],
    serialize: Callable[[list[Any]], list[dict[str, Any]]],
) -> dict[str, Any]:
    """Same as `paginate`, for an index scan: `read_ids` returns so many ids after a key, and the key of the next page.

    `rows` are the rows that the ids are of, `serialize` gets those of the page.
    """
    scope = hash_cursor_scope(operation, principal.tenant, query.given_fields())
    after = None if query.cursor is None else parse_cursor(query.cursor, scope)
    ids, next_key = read_ids(after, query.limit)
    if (fitting := count_fitting(rows, ids, payload)) < len(ids):
        ids, next_key = read_ids(after, fitting)
    items = serialize(read_by_id(rows, ids, payload, fitting))
    return {"items": items, "next_cursor": None if next_key is None else sign_cursor(scope, next_key)}


def hash_cursor_scope(operation: str, tenant: str | None, params: dict[str, Any]) -> str:
    """Return a short hash of the list that a cursor belongs to. A page may change `limit`: it is no filter."""
    filters = {name: value for name, value in sorted(params.items()) if name not in ("limit", "cursor")}
    text = json.dumps([operation, tenant, filters], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sign_cursor(scope: str, key: CursorKey) -> str:
    """Return the cursor of a key."""
    return Signer(salt="jobs.api.cursor").sign_object([scope, key])


def parse_cursor(cursor: str, scope: str) -> CursorKey:
    """Return the key of a cursor. Raise InvalidInput unless it was signed here, for this list."""
    try:
        if len(cursor) > MAX_CURSOR_LENGTH:
            raise BadSignature
        signed_scope, key = Signer(salt="jobs.api.cursor").unsign_object(cursor)
    except (BadSignature, ValueError, TypeError):
        raise InvalidInput(["query", "cursor"], _("is not a cursor of this list"), "cursor") from None
    if signed_scope != scope or not isinstance(key, list):
        message = _("belongs to another list, other filters or another tenant")
        raise InvalidInput(["query", "cursor"], message, "cursor")
    return key
