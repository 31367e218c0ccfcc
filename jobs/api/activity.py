"""The endpoint of activities: what people, tokens and commands did."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext as _
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import serializers
from jobs.actors import ActorKind
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest
from jobs.api.operations import operation
from jobs.api.pagination import CursorKey, Paged, hash_cursor_scope, parse_cursor, sign_cursor
from jobs.api.request_params import StrictQuery, one_of, validated_by
from jobs.api.responses import json_response
from jobs.api.schemas import JsonObject, Out, Page, Time, enum_schema
from jobs.errors import InvalidInput
from jobs.models.activity import ALL_ACTIONS, OBJECT_KINDS, OBJECT_LENGTH
from jobs.services.activity_list import ActivityFilters, Position, read_page
from jobs.validation import fields

router = Router(tags=["activity"])
ACTOR_KINDS = list(map(str, ActorKind))
parse_object_id = partial(fields.parse_text, max_length=OBJECT_LENGTH)
OBJECT_ID = {
    "type": "string",
    "minLength": 1,
    "maxLength": OBJECT_LENGTH,
    "description": "The object's id; the key of a target; `global` or `<scope>:<key>` of a limit.",
}


class ActivityActorOut(Out):
    kind: Annotated[str, WithJsonSchema(enum_schema(ACTOR_KINDS))]
    id: str | None = Field(description="Of a user or an API token; null for events of jobs.")
    name: str


class ObjectOut(Out):
    kind: Annotated[str, WithJsonSchema(enum_schema(OBJECT_KINDS))]
    id: str
    name: str


class ActivityOut(Out):
    id: str = Field(description="A UUID; for actions on jobs, the number of the event.")
    at: Time
    tenant: str | None = Field(description="Null: it concerns all tenants.")
    actor: ActivityActorOut
    action: Annotated[str, WithJsonSchema(enum_schema(ALL_ACTIONS))]
    object: ObjectOut
    before: JsonObject | None = Field(description="The changed fields, secrets masked. Null for a new object.")
    after: JsonObject | None = Field(description="The changed fields, secrets masked. Null for a deleted object.")
    reason: str


class ActivityQuery(Paged):
    tenant: Annotated[str | None, *validated_by(fields.parse_tenant, f.TENANT)] = None
    actor_kind: Annotated[str | None, *validated_by(one_of(*ACTOR_KINDS), enum_schema(ACTOR_KINDS))] = None
    actor: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    action: Annotated[str | None, *validated_by(one_of(*ALL_ACTIONS), enum_schema(ALL_ACTIONS))] = None
    object_kind: Annotated[str | None, *validated_by(one_of(*OBJECT_KINDS), enum_schema(OBJECT_KINDS))] = None
    object_id: Annotated[str | None, *validated_by(parse_object_id, OBJECT_ID)] = None
    since: Annotated[datetime | None, *validated_by(fields.parse_time, f.MOMENT)] = None
    until: Annotated[datetime | None, *validated_by(fields.parse_time, f.MOMENT)] = None


@router.get(
    "/activity", **operation("activity_list", Page[ActivityOut], "List activities", permissions=["view_activity"])
)
def activity_list(request: ApiRequest, query: Annotated[ActivityQuery, StrictQuery()]) -> HttpResponse:
    """Newest first: changes of limits, targets, workers, groups, templates, schedules, endpoints and tokens, and what
    users, tokens and commands did to jobs. A token of one tenant sees that tenant's."""
    principal, given = request.auth, query.given_fields()
    if query.tenant is not None and not principal.can_see_tenant(query.tenant):
        return json_response({"items": [], "next_cursor": None})
    if query.object_id is not None and query.object_kind is None:
        raise InvalidInput(["query", "object_id"], _("needs object_kind"), "missing")
    names = ActivityFilters.__dataclass_fields__
    filters: dict[str, Any] = {name: value for name, value in given.items() if name in names}
    filters["tenant"] = query.tenant or principal.tenant
    scope = hash_cursor_scope("activity_list", principal.tenant, given)
    start = None if query.cursor is None else _parse_position(parse_cursor(query.cursor, scope))
    entries, position = read_page(ActivityFilters(**filters), start, query.limit)
    items = [serializers.serialize_activity(entry, with_payload=principal.can_view_payload) for entry in entries]
    return json_response({"items": items, "next_cursor": _sign_position(scope, position)})


def _parse_position(key: CursorKey) -> Position:
    activity, event = key
    return Position(None if activity is None else UUID(activity), event)


def _sign_position(scope: str, position: Position | None) -> Any:
    if position is None:
        return None
    return sign_cursor(scope, [None if position.activity is None else str(position.activity), position.event])
