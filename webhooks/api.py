"""Endpoints of the API for webhooks: receivers and deliveries."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from django.http import HttpResponse
from ninja import Router

from jobs.api.auth import ApiRequest
from jobs.api.operations import action, lookup, operation
from jobs.api.pagination import Order, paginate
from jobs.api.request_params import JsonBody, OptionalJsonBody, StrictQuery
from jobs.api.responses import empty_response, etag_response, json_response
from jobs.api.schemas import Id
from jobs.serializers import serialize_columns
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

serialize_endpoint = partial(serialize_columns, names=ListedEndpointOut.model_fields)
serialize_delivery = partial(serialize_columns, names=DeliveryOut.model_fields)
admin_operation = partial(operation, scope="admin")
router = Router(tags=["webhooks"])
NEWEST_FIRST = Order(WebhookEndpoint, ("-id",))
LATEST_FIRST = Order(WebhookDelivery, ("-id",))
RESEND_PERMISSION = "jobscheduler_webhooks.resend_delivery"


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
    **admin_operation("webhooks_create", {201: EndpointOut}, body=True, problems=[409], summary="Create an endpoint"),
)
def webhooks_create(request: ApiRequest, body: Annotated[EndpointIn, JsonBody()]) -> HttpResponse:
    """The response has the secret that signs its deliveries. Store it: it is not shown again."""
    fields = body.given_fields()
    tenant = request.auth.resolve_tenant(fields.get("tenant"))
    url, events, enabled = fields.get("url"), fields.get("events"), fields.get("enabled", True)
    endpoint, secret = services.create(url, events, tenant=tenant, enabled=enabled, actor=request.auth.actor)
    return json_response({**serialize_endpoint(endpoint), "secret": secret}, 201, has_secret=True)


@router.get("/webhooks/{endpoint_id}", **lookup("webhooks_get", ListedEndpointOut, "Get an endpoint"))
def webhooks_get(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    return etag_response(request, serialize_endpoint(services.get(endpoint_id, tenant=request.auth.tenant)))


@router.patch(
    "/webhooks/{endpoint_id}",
    **admin_operation("webhooks_update", ListedEndpointOut, body=True, problems=[404], summary="Change an endpoint"),
)
def webhooks_update(request: ApiRequest, endpoint_id: Id, body: Annotated[EndpointEdits, JsonBody()]) -> HttpResponse:
    """Changes the given fields. They apply to events from now on."""
    principal = request.auth
    endpoint = services.update(endpoint_id, body.given_fields(), tenant=principal.tenant, actor=principal.actor)
    return json_response(serialize_endpoint(endpoint))


@router.delete(
    "/webhooks/{endpoint_id}",
    **admin_operation("webhooks_delete", {204: None}, problems=[404], summary="Delete an endpoint"),
)
def webhooks_delete(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    """Deletes its deliveries, too."""
    services.delete(endpoint_id, tenant=request.auth.tenant, actor=request.auth.actor)
    return empty_response()


@router.get(
    "/webhooks/{endpoint_id}/deliveries",
    **operation("webhooks_deliveries", DeliveryPage, problems=[404], summary="List deliveries"),
)
def webhooks_deliveries(
    request: ApiRequest, endpoint_id: Id, query: Annotated[DeliveryFilters, StrictQuery()]
) -> HttpResponse:
    """Newest first. A delivery appears a moment after its event, by fan-out."""
    endpoint = services.get(endpoint_id, tenant=request.auth.tenant)
    rows = services.deliveries_of(None).filter(endpoint_id=endpoint.pk)
    if query.status is not None:
        rows = rows.filter(status=query.status)
    return json_response(
        paginate(request.auth, "webhooks_deliveries", query, rows, LATEST_FIRST, serialize_delivery, parent=endpoint.pk)
    )


@router.post(
    "/webhooks/{endpoint_id}/test",
    **admin_operation("webhooks_test", {201: DeliveryOut}, problems=[404, 409], summary="Send a test delivery"),
)
def webhooks_test(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    """Sends an event `webhook.test`; get the delivery a moment later to see the result. 409 while disabled."""
    principal = request.auth
    delivery = services.send_test(endpoint_id, tenant=principal.tenant, actor=principal.actor)
    return json_response(serialize_delivery(delivery), 201)


@router.post(
    "/webhooks/{endpoint_id}/rotate-secret",
    **admin_operation("webhooks_rotate_secret", EndpointOut, problems=[404], summary="Replace the secret"),
)
def webhooks_rotate_secret(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    """For 24 hours deliveries are signed with both secrets, so that the receiver can switch."""
    principal = request.auth
    endpoint, secret = services.rotate_secret(endpoint_id, tenant=principal.tenant, actor=principal.actor)
    return json_response({**serialize_endpoint(endpoint), "secret": secret}, has_secret=True)


@router.post(
    "/webhooks/{endpoint_id}/resend-failed",
    **action("webhooks_resend_failed", ResentOut, RESEND_PERMISSION, "Resend failed deliveries"),
)
def webhooks_resend_failed(
    request: ApiRequest, endpoint_id: Id, body: Annotated[ResendIn, OptionalJsonBody()]
) -> HttpResponse:
    """Oldest first, at most API_BULK_LIMIT; call it again for the next ones."""
    principal = request.auth
    count = services.resend_failed(endpoint_id, since=body.since, tenant=principal.tenant, actor=principal.actor)
    return json_response({"count": count})


@router.get("/webhook-deliveries/{delivery_id}", **lookup("webhook_deliveries_get", DeliveryOut, "Get a delivery"))
def webhook_deliveries_get(request: ApiRequest, delivery_id: Id) -> HttpResponse:
    return etag_response(request, serialize_delivery(services.get_delivery(delivery_id, tenant=request.auth.tenant)))


@router.post(
    "/webhook-deliveries/{delivery_id}/resend",
    **operation(
        "webhook_deliveries_resend",
        DeliveryOut,
        scope="operate",
        permission=RESEND_PERMISSION,
        problems=[404, 409],
        summary="Resend a delivery",
    ),
)
def webhook_deliveries_resend(request: ApiRequest, delivery_id: Id) -> HttpResponse:
    """At once, in any status, with the same `webhook-id` and bytes, and with all retries again."""
    principal = request.auth
    delivery = services.resend(delivery_id, tenant=principal.tenant, actor=principal.actor)
    return json_response(serialize_delivery(delivery))
