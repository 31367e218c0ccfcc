"""Webhooks: who is told of jobs, and what became of each delivery."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from ninja import Router

from jobs.api.auth import ApiRequest
from jobs.api.operations import action, operation
from jobs.api.pagination import Order, paginate
from jobs.api.request_params import JsonBody, OptionalJsonBody, StrictQuery
from jobs.api.responses import empty_response, etag_response, json_response
from jobs.api.schemas import Id, Out
from jobs.serializers import format_time
from webhooks import services
from webhooks.models import WebhookDelivery, WebhookEndpoint
from webhooks.schemas import (
    DeliveryFilters,
    DeliveryOut,
    DeliveryPage,
    EndpointEdits,
    EndpointFilters,
    EndpointIn,
    EndpointOut,
    EndpointPage,
    ListedEndpointOut,
    ResendIn,
    ResentOut,
)


def serialize(schema: type[Out], row: WebhookEndpoint | WebhookDelivery) -> dict[str, Any]:
    """Return the columns of a row that a schema names."""
    document = {name: getattr(row, name) for name in schema.model_fields}
    for name, value in document.items():
        if isinstance(value, datetime):
            document[name] = format_time(value)
        elif isinstance(value, UUID):
            document[name] = str(value)
    return document


serialize_endpoint = partial(serialize, ListedEndpointOut)
serialize_delivery = partial(serialize, DeliveryOut)
router = Router(tags=["webhooks"])
NEWEST_FIRST = Order(WebhookEndpoint, ("-id",))
LATEST_FIRST = Order(WebhookDelivery, ("-id",))
RESEND = "jobscheduler_webhooks.resend_delivery"


@router.get("/webhooks", **operation("webhooks_list", EndpointPage, summary="List endpoints"))
def webhooks_list(request: ApiRequest, query: Annotated[EndpointFilters, StrictQuery()]) -> HttpResponse:
    """Newest first. Secrets are never shown again."""
    rows = services.of(request.auth.tenant)
    if query.tenant is not None:
        rows = rows.filter(tenant=query.tenant)
    if query.enabled is not None:
        rows = rows.filter(enabled=query.enabled == "true")
    return json_response(paginate(request.auth, "webhooks_list", query, rows, NEWEST_FIRST, serialize_endpoint))


@router.post(
    "/webhooks",
    **operation(
        "webhooks_create", {201: EndpointOut}, scope="admin", body=True, problems=[409], summary="Make an endpoint"
    ),
)
def webhooks_create(request: ApiRequest, body: Annotated[EndpointIn, JsonBody()]) -> HttpResponse:
    """The answer has the secret that signs its deliveries: keep it, it is not shown again."""
    fields = body.given_fields()
    tenant = request.auth.resolve_tenant(fields.get("tenant"))
    url, events, enabled = fields.get("url"), fields.get("events"), fields.get("enabled", True)
    made, secret = services.create(url, events, tenant=tenant, enabled=enabled, actor=request.auth.actor)
    return json_response({**serialize_endpoint(made), "secret": secret}, 201)


@router.get(
    "/webhooks/{endpoint_id}",
    **operation("webhooks_get", ListedEndpointOut, problems=[404], cached=True, summary="Look at an endpoint"),
)
def webhooks_get(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    return etag_response(request, serialize_endpoint(services.get(endpoint_id, tenant=request.auth.tenant)))


@router.patch(
    "/webhooks/{endpoint_id}",
    **operation(
        "webhooks_update", ListedEndpointOut, scope="admin", body=True, problems=[404], summary="Change an endpoint"
    ),
)
def webhooks_update(request: ApiRequest, endpoint_id: Id, body: Annotated[EndpointEdits, JsonBody()]) -> HttpResponse:
    """What is said changes; events from now on go by it."""
    principal = request.auth
    changed = services.update(endpoint_id, body.given_fields(), tenant=principal.tenant, actor=principal.actor)
    return json_response(serialize_endpoint(changed))


@router.delete(
    "/webhooks/{endpoint_id}",
    **operation("webhooks_delete", {204: None}, scope="admin", problems=[404], summary="Delete an endpoint"),
)
def webhooks_delete(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    """With all its deliveries."""
    services.delete(endpoint_id, tenant=request.auth.tenant, actor=request.auth.actor)
    return empty_response()


@router.get(
    "/webhooks/{endpoint_id}/deliveries",
    **operation("webhooks_deliveries", DeliveryPage, problems=[404], summary="List deliveries"),
)
def webhooks_deliveries(
    request: ApiRequest, endpoint_id: Id, query: Annotated[DeliveryFilters, StrictQuery()]
) -> HttpResponse:
    """Newest first. What has just happened may take a moment to be handed out."""
    known = services.get(endpoint_id, tenant=request.auth.tenant)
    rows = services.deliveries(None).filter(endpoint_id=known.pk)
    if query.status is not None:
        rows = rows.filter(status=query.status)
    return json_response(
        paginate(request.auth, "webhooks_deliveries", query, rows, LATEST_FIRST, serialize_delivery, parent=known.pk)
    )


@router.post(
    "/webhooks/{endpoint_id}/test",
    **operation(
        "webhooks_test", {201: DeliveryOut}, scope="admin", problems=[404, 409], summary="Send a test delivery"
    ),
)
def webhooks_test(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    """An event `webhook.test`, sent as all others are: look at the delivery a moment later. 409 while disabled."""
    principal = request.auth
    return json_response(
        serialize_delivery(services.send_test(endpoint_id, tenant=principal.tenant, actor=principal.actor)), 201
    )


@router.post(
    "/webhooks/{endpoint_id}/rotate-secret",
    **operation("webhooks_rotate_secret", EndpointOut, scope="admin", problems=[404], summary="Replace the secret"),
)
def webhooks_rotate_secret(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    """The former secret signs along for 24 hours, so that the receiver can change over."""
    principal = request.auth
    changed, secret = services.rotate_secret(endpoint_id, tenant=principal.tenant, actor=principal.actor)
    return json_response({**serialize_endpoint(changed), "secret": secret})


@router.post(
    "/webhooks/{endpoint_id}/resend-failed",
    **action("webhooks_resend_failed", ResentOut, RESEND, "Resend all that failed"),
)
def webhooks_resend_failed(
    request: ApiRequest, endpoint_id: Id, body: Annotated[ResendIn, OptionalJsonBody()]
) -> HttpResponse:
    """The oldest first, no more than API_BULK_LIMIT at once; asked again, the next ones."""
    principal = request.auth
    count = services.resend_failed(endpoint_id, since=body.since, tenant=principal.tenant, actor=principal.actor)
    return json_response({"count": count})


@router.get(
    "/webhook-deliveries/{delivery_id}",
    **operation("webhook_deliveries_get", DeliveryOut, problems=[404], cached=True, summary="Look at a delivery"),
)
def webhook_deliveries_get(request: ApiRequest, delivery_id: Id) -> HttpResponse:
    return etag_response(request, serialize_delivery(services.get_delivery(delivery_id, tenant=request.auth.tenant)))


@router.post(
    "/webhook-deliveries/{delivery_id}/resend",
    **operation(
        "webhook_deliveries_resend",
        DeliveryOut,
        scope="operate",
        permission=RESEND,
        problems=[404, 409],
        summary="Send a delivery again",
    ),
)
def webhook_deliveries_resend(request: ApiRequest, delivery_id: Id) -> HttpResponse:
    """Now, whatever became of it, with the same `webhook-id` and the same bytes, and with all retries anew."""
    principal = request.auth
    return json_response(
        serialize_delivery(services.resend(delivery_id, tenant=principal.tenant, actor=principal.actor))
    )
