"""Cursors: signed places in a list, good only for the same list, the same filters and the same tenant."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.core.signing import BadSignature, Signer
from django.utils.translation import gettext as _

from jobs.errors import InvalidInput

SALT = "jobs.api.cursor"
LONGEST = 1000


def bound_to(operation: str, tenant: str | None, asked: dict[str, Any]) -> str:
    """What a cursor belongs to, in short. `limit` and `cursor` are no filters: a page may change its size."""
    filters = {name: value for name, value in sorted(asked.items()) if name not in ("limit", "cursor")}
    text = json.dumps([operation, tenant, filters], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def seal(bond: str, place: list[Any]) -> str:
    return Signer(salt=SALT).sign_object([bond, place])


def place_of(cursor: str, bond: str) -> list[Any]:
    """The place that a cursor names, if it is ours and for this list."""
    try:
        if len(cursor) > LONGEST:
            raise BadSignature
        sealed, place = Signer(salt=SALT).unsign_object(cursor)
    except (BadSignature, ValueError, TypeError):
        raise InvalidInput(["query", "cursor"], _("is not a cursor of this list"), "cursor") from None
    if sealed != bond or not isinstance(place, list):
        message = _("belongs to another list, other filters or another tenant")
        raise InvalidInput(["query", "cursor"], message, "cursor")
    return place
