"""Endpoints of the API for webhooks: receivers and deliveries."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router

from jobs.api.auth import ApiRequest, Principal
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

serialize_delivery = partial(serialize_columns, names=DeliveryOut.model_fields)
admin_operation = partial(operation, scope="admin")
router = Router(tags=["webhooks"])
NEWEST_FIRST = Order(WebhookEndpoint, ("-id",))
LATEST_FIRST = Order(WebhookDelivery, ("-id",))
APP_LABEL = WebhookEndpoint._meta.app_label
VIEW_ENDPOINTS, VIEW_DELIVERIES = [f"{APP_LABEL}.view_webhookendpoint"], [f"{APP_LABEL}.view_webhookdelivery"]
RESEND_PERMISSION = f"{APP_LABEL}.resend_delivery"


def serialize_endpoint(row: WebhookEndpoint, principal: Principal) -> dict[str, Any]:
    """Return the document of an endpoint; the path of its URL only with the permission to view payloads."""
    document = serialize_columns(row, ListedEndpointOut.model_fields)
    return document if principal.can_view_payload else {**document, "url": row.origin}


@router.get(
    "/webhooks", **operation("webhooks_list", EndpointPage, permissions=VIEW_ENDPOINTS, summary="List endpoints")
)
def webhooks_list(request: ApiRequest, query: Annotated[EndpointFilters, StrictQuery()]) -> HttpResponse:
    """Newest first. Secrets are never shown again."""
    rows = services.of(request.auth.tenant)
    if query.tenant is not None:
        rows = rows.filter(tenant=query.tenant)
    if query.enabled is not None:
        rows = rows.filter(enabled=query.enabled == "true")
    serialize = partial(serialize_endpoint, principal=request.auth)
    return json_response(paginate(request.auth, "webhooks_list", query, rows, NEWEST_FIRST, serialize))


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
    return json_response({**serialize_endpoint(endpoint, request.auth), "secret": secret}, 201, has_secret=True)


@router.get(
    "/webhooks/{endpoint_id}",
    **lookup("webhooks_get", ListedEndpointOut, "Get an endpoint", permissions=VIEW_ENDPOINTS),
)
def webhooks_get(request: ApiRequest, endpoint_id: Id) -> HttpResponse:
    """With the state of its circuit, without its secret."""
    endpoint = services.get(endpoint_id, tenant=request.auth.tenant)
    return etag_response(request, serialize_endpoint(endpoint, request.auth))


@router.patch(
    "/webhooks/{endpoint_id}",
    **admin_operation("webhooks_update", ListedEndpointOut, body=True, problems=[404], summary="Change an endpoint"),
)
def webhooks_update(request: ApiRequest, endpoint_id: Id, body: Annotated[EndpointEdits, JsonBody()]) -> HttpResponse:
    """Changes the given fields. They apply to events from now on."""
    principal = request.auth
    endpoint = services.update(endpoint_id, body.given_fields(), tenant=principal.tenant, actor=principal.actor)
    return json_response(serialize_endpoint(endpoint, principal))


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
    **operation(
        "webhooks_deliveries", DeliveryPage, permissions=VIEW_DELIVERIES, problems=[404], summary="List deliveries"
    ),
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
    return json_response({**serialize_endpoint(endpoint, principal), "secret": secret}, has_secret=True)


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


@router.get(
    "/webhook-deliveries/{delivery_id}",
    **lookup("webhook_deliveries_get", DeliveryOut, "Get a delivery", permissions=VIEW_DELIVERIES),
)
def webhook_deliveries_get(request: ApiRequest, delivery_id: Id) -> HttpResponse:
    """With the number of its attempts and the last response."""
    return etag_response(request, serialize_delivery(services.get_delivery(delivery_id, tenant=request.auth.tenant)))


@router.post(
    "/webhook-deliveries/{delivery_id}/resend",
    **operation(
        "webhook_deliveries_resend",
        DeliveryOut,
        scope="operate",
        permissions=[RESEND_PERMISSION],
        problems=[404, 409],
        summary="Resend a delivery",
    ),
)
def webhook_deliveries_resend(request: ApiRequest, delivery_id: Id) -> HttpResponse:
    """At once, in any status, with the same `webhook-id` and bytes, and with all retries again."""
    principal = request.auth
    delivery = services.resend(delivery_id, tenant=principal.tenant, actor=principal.actor)
    return json_response(serialize_delivery(delivery))
