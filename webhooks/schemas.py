"""Endpoints and deliveries as documents of the API: request bodies, query parameters and responses."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from jobs.api import field_schemas as f
from jobs.api.pagination import Paged
from jobs.api.request_params import RequestBody, body_config, one_of, validated_by
from jobs.api.schemas import Id, Out, Page, Time, enum_schema
from jobs.validation import fields as parsing
from webhooks.events import PATTERNS
from webhooks.models import DeliveryStatus
from webhooks.url_guard import MAX_URL_LENGTH

URL = {"type": "string", "format": "uri", "maxLength": MAX_URL_LENGTH}
EVENTS = {"type": "array", "items": enum_schema(PATTERNS), "minItems": 1}
STATUS = enum_schema(DeliveryStatus.values)
EXAMPLE: dict[str, Any] = {"url": "https://example.org/hooks/jobs", "events": ["job.completed", "job.failed"]}


class ListedEndpointOut(Out):
    id: Id
    tenant: str
    url: str = Field(description="Scheme and host only, where the principal may not see payloads.")
    events: Annotated[list[str], WithJsonSchema(EVENTS)]
    enabled: bool
    disabled_reason: str
    failures: int = Field(description="Consecutive failures. After five, nothing is sent until `open_until`.")
    open_until: Time | None = Field(description="The circuit is open until then: only resent deliveries are sent.")
    old_secret_until: Time | None = Field(description="Until then deliveries are signed with the old secret, too.")
    created_at: Time


class EndpointOut(ListedEndpointOut):
    secret: str = Field(description="Not shown again. `whsec_` and base64, as in Standard Webhooks.")


class DeliveryOut(Out):
    """One event to one endpoint, at least once: after a failed attempt there are up to WEBHOOK_MAX_RETRIES (3) more,
    with growing delays, then it is FAILED and can be resent (DEC-009). Its `id` is the `webhook-id` of every attempt: a
    receiver knows a repeated event by it."""

    id: Id
    endpoint_id: Id
    event: str
    job_id: Id | None
    group_id: Id | None
    status: Annotated[str, WithJsonSchema(STATUS)]
    attempts: int
    next_try_at: Time | None
    response_status: int | None
    error: str
    created_at: Time
    delivered_at: Time | None


class EndpointEdits(RequestBody):
    """`enabled: true` closes the circuit; `enabled: false` fails the pending deliveries."""

    model_config = body_config(enabled=False)

    url: Annotated[Any, WithJsonSchema(URL)] = Field(default=None)
    events: Annotated[Any, WithJsonSchema(EVENTS)] = Field(default=None)
    enabled: f.Flag = Field(default=None)


class EndpointIn(EndpointEdits):
    """The URL must be http or https, without a user name, at an allowed port of a public address."""

    model_config = body_config(**EXAMPLE)

    url: Annotated[Any, WithJsonSchema(URL)]
    events: Annotated[Any, WithJsonSchema(EVENTS)]
    tenant: f.Tenant | None = None


class ResendIn(RequestBody):
    model_config = body_config(since="2030-01-31T12:00:00Z")

    since: f.Moment | None = Field(default=None, description="Only deliveries created since then.")


class ResentOut(Out):
    count: int


class EndpointFilters(Paged):
    tenant: Annotated[str | None, *validated_by(parsing.parse_tenant, f.TENANT)] = None
    enabled: Annotated[str | None, *validated_by(one_of("true", "false"), {"type": "boolean"})] = None


class DeliveryFilters(Paged):
    status: Annotated[str | None, *validated_by(one_of(*DeliveryStatus.values), STATUS)] = None


class EndpointPage(Page[ListedEndpointOut]):
    pass


class DeliveryPage(Page[DeliveryOut]):
    pass
