"""Sets of endpoints that are owed the same: what their id is made of, and who is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from webhooks.models import WebhookAudience

ID_BYTES = 16


def pack(endpoints: Iterable[UUID]) -> bytes:
    return b"".join(sorted(each.bytes for each in endpoints))


def unpack(ids: Any) -> list[UUID]:
    """Of an audience, or of anything else that is packed so."""
    raw = bytes(ids or b"")
    return [UUID(bytes=raw[start : start + ID_BYTES]) for start in range(0, len(raw), ID_BYTES)]


def key(packed: bytes) -> UUID:
    """As `md5(bytea)` has it on PostgreSQL, where an audience is put together without asking us."""
    return UUID(hex=hashlib.md5(packed, usedforsecurity=False).hexdigest())


def known(endpoints: Iterable[UUID]) -> UUID:
    """The id of an audience, which is there from now on."""
    packed = pack(endpoints)
    row = WebhookAudience(id=key(packed), endpoints=packed)
    WebhookAudience.objects.bulk_create([row], ignore_conflicts=True)
    return row.id


def members(ids: Collection[UUID]) -> dict[UUID, list[UUID]]:
    rows = WebhookAudience.objects.filter(pk__in=ids)
    return {pk: unpack(endpoints) for pk, endpoints in rows.values_list("pk", "endpoints")}
