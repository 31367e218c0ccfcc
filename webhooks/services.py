"""Create and change endpoints, resend deliveries: the functions that the API, the console and Python code call.

`tenant` restricts a call to the rows of one tenant; None is every tenant. Rows of other tenants raise NotFound.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.errors import Conflict, InvalidInput, NotFound
from jobs.ids import min_id_at
from jobs.models import Action
from jobs.services import activity
from jobs.validation import fields
from webhooks import circuit_breaker, deliveries, events, payloads, secrets, sender, subscriptions, url_guard
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage

logger = logging.getLogger("webhooks.services")
OLD_SECRET_VALIDITY = timedelta(hours=24)  # deliveries are signed with both secrets
MAX_ENDPOINTS = 200  # of one tenant
BATCH_SIZE = 1000


class EndpointDisabled(Conflict):
    code = "endpoint_disabled"


class DeliveryInFlight(Conflict):
    code = "delivery_in_flight"


class TooManyEndpoints(Conflict):
    code = "too_many_endpoints"


def create(
    url: Any, event_names: Any, *, tenant: str = "default", enabled: Any = True, actor: Actor = PYTHON
) -> tuple[WebhookEndpoint, str]:
    """Create an endpoint; return it and its secret, which is not shown again."""
    secret = secrets.new_secret()
    endpoint = WebhookEndpoint(
        tenant=fields.parse_tenant(tenant),
        url=_parse_url(url),
        events=events.parse_events(event_names),
        enabled=fields.parse_boolean(enabled, "enabled"),
    )
    endpoint.secret = secrets.encrypt_secret(secret, endpoint.pk)
    with db.atomic():
        if of(endpoint.tenant).count() >= MAX_ENDPOINTS:
            raise TooManyEndpoints(_("A tenant may have no more than %d endpoints.") % MAX_ENDPOINTS)
        endpoint.save(using=db.alias(), force_insert=True)
        subscriptions.write_subscriptions(endpoint)
        activity.record(Action.ENDPOINT_CREATE, _to_object(endpoint), actor=actor, after=_build_fields(endpoint))
    _log_change(endpoint, "created", actor)
    return get(endpoint.pk), secrets.format_secret(secret)


def of(tenant: str | None) -> QuerySet[WebhookEndpoint]:
    """Return the endpoints of one tenant, or of all."""
    endpoints = WebhookEndpoint.objects.all()
    return endpoints if tenant is None else endpoints.filter(tenant=tenant)


def get(endpoint_id: UUID | str, *, tenant: str | None = None) -> WebhookEndpoint:
    return _find(of(tenant), endpoint_id)


def update(
    endpoint_id: UUID | str, changes: Mapping[str, Any], *, tenant: str | None = None, actor: Actor = PYTHON
) -> WebhookEndpoint:
    """Change an endpoint. Enabling closes its circuit; disabling fails its pending deliveries."""
    cleaned: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in VALIDATORS:
            raise InvalidInput(str(name)[:100], _("is not a field of an endpoint"), "extra_forbidden")
        cleaned[name] = VALIDATORS[name](value)
    with db.atomic():
        endpoint = _lock(endpoint_id, tenant)
        before = _build_fields(endpoint)
        if cleaned.get("enabled") and not endpoint.enabled:
            cleaned |= {"disabled_reason": "", "failures": 0, "open_until": None, "failing_since": None}
        if cleaned:
            of(tenant).filter(pk=endpoint.pk).update(**cleaned)
            endpoint.refresh_from_db(fields=["url", "events", "enabled"])
        if cleaned.get("enabled") is False:
            deliveries.disable_endpoint(endpoint)
        else:
            subscriptions.write_subscriptions(endpoint)
        changed, after = _to_object(endpoint), _build_fields(endpoint)
        activity.record_changes(Action.ENDPOINT_UPDATE, changed, before, after, actor=actor)
    _log_change(endpoint, "changed", actor)
    return get(endpoint.pk)


def delete(endpoint_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> None:
    """Delete an endpoint with its deliveries, and messages that no other endpoint got."""
    with db.atomic():
        endpoint = _lock(endpoint_id, tenant)
        activity.record(Action.ENDPOINT_DELETE, _to_object(endpoint), actor=actor, before=_build_fields(endpoint))
        deliveries.disable_endpoint(endpoint)  # fan-out inserts no more deliveries
    own_deliveries = WebhookDelivery.objects.filter(endpoint_id=endpoint.pk)
    while message_of := dict(own_deliveries.values_list("pk", "message_id")[:BATCH_SIZE]):
        with db.atomic():
            WebhookAttempt.objects.filter(delivery_id__in=list(message_of))._raw_delete(db.alias())
            own_deliveries.filter(pk__in=list(message_of))._raw_delete(db.alias())
            messages = WebhookMessage.objects.filter(pk__in=message_of.values(), fanned_out_at__isnull=False)
            messages.filter(deliveries__isnull=True).delete()
    of(tenant).filter(pk=endpoint.pk).delete()
    _log_change(endpoint, "deleted", actor)


def rotate_secret(
    endpoint_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON
) -> tuple[WebhookEndpoint, str]:
    """Replace the secret; return the endpoint and the new secret, which is not shown again.

    For OLD_SECRET_VALIDITY deliveries are signed with both, so that the receiver can switch.
    """
    secret = secrets.new_secret()
    with db.atomic():
        endpoint = _lock(endpoint_id, tenant)
        of(tenant).filter(pk=endpoint.pk).update(
            secret=secrets.encrypt_secret(secret, endpoint.pk),
            old_secret=endpoint.secret,
            old_secret_until=Now() + OLD_SECRET_VALIDITY,
        )
        activity.record(Action.ENDPOINT_ROTATE_SECRET, _to_object(endpoint), actor=actor)
    _log_change(endpoint, "secret rotated", actor)
    return get(endpoint.pk), secrets.format_secret(secret)


def send_test(endpoint_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> WebhookDelivery:
    """Send a `webhook.test` delivery at once, also while the circuit is open."""
    with db.atomic():
        endpoint = _lock_enabled(endpoint_id, tenant)
        now = clock.now()
        data = {"endpoint_id": str(endpoint.pk), "message": _("This is a test.")}
        message = WebhookMessage.objects.create(
            tenant=endpoint.tenant,
            event=events.TEST,
            at=now,
            body=payloads.build_body(events.TEST, now, data),
            fanned_out_at=now,
        )
        delivery = WebhookDelivery.objects.create(endpoint=endpoint, message=message, event=events.TEST, probe=True)
        sent = {"delivery_id": delivery.pk}
        activity.record(Action.ENDPOINT_TEST, _to_object(endpoint), actor=actor, after=sent)
    db.after_commit(sender.wake_senders)
    _log_change(endpoint, "test delivery sent", actor)
    return get_delivery(delivery.pk)


def deliveries_of(tenant: str | None) -> QuerySet[WebhookDelivery]:
    """Return the deliveries of one tenant, or of all."""
    rows = WebhookDelivery.objects.all()
    return rows if tenant is None else rows.filter(endpoint__tenant=tenant)


def get_delivery(delivery_id: UUID | str, *, tenant: str | None = None) -> WebhookDelivery:
    return _find(deliveries_of(tenant), delivery_id)


def count_deliveries(job_ids: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """Return `{pending, delivered, failed}` of jobs that have any. Deliveries that fan-out will insert are pending."""
    counts: dict[UUID, dict[str, int]] = defaultdict(lambda: {"pending": 0, "delivered": 0, "failed": 0})
    rows = WebhookDelivery.objects.filter(job_id__in=job_ids).order_by()
    for job_id, status, count in rows.values_list("job_id", "status").annotate(count=Count("pk")):
        counts[job_id][status.lower()] += count
    for job_id, count in count_before_fan_out(job_ids).items():
        counts[job_id]["pending"] += count
    return dict(counts)


def count_before_fan_out(job_ids: Sequence[UUID]) -> Counter[UUID]:
    """Return by job how many deliveries fan-out will insert."""
    messages = list(WebhookMessage.objects.of_jobs(job_ids).filter(fanned_out_at__isnull=True).defer("body").order_by())
    recipients = subscriptions.find_recipients(messages) if messages else {}
    counts: Counter[UUID] = Counter()
    for message in messages:
        counts[message.job_id] += len(recipients[message.pk])
    return +counts  # without zeros: messages without subscribers


class ResentDeliveries(NamedTuple):
    """How many deliveries were resent; of these, how many wait until the first of their endpoint is delivered; and how
    many were skipped: their endpoint is disabled, they are being sent at this moment, or they no longer exist."""

    resent: int
    waiting: int = 0
    disabled: int = 0
    in_flight: int = 0
    missing: int = 0


def resend(delivery_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> WebhookDelivery:
    """Send a delivery again at once, in any status and with an open circuit: same id and body, all retries again.

    Raise EndpointDisabled, or DeliveryInFlight if it is being sent at this moment.
    """
    delivery = get_delivery(delivery_id, tenant=tenant)
    with db.atomic():
        endpoint = _lock_enabled(delivery.endpoint_id, tenant)
        if not _requeue([delivery.pk], probes=[delivery.pk]):
            raise DeliveryInFlight(_("This delivery is being sent at this moment; wait for the result."))
        sent = {"delivery_id": delivery.pk}
        activity.record(Action.ENDPOINT_RESEND, _to_object(endpoint), actor=actor, after=sent)
    db.after_commit(sender.wake_senders)
    _log_change(endpoint, f"delivery {delivery.pk} resent", actor)
    return get_delivery(delivery.pk)


def resend_many(ids: Sequence[UUID], *, tenant: str | None = None, actor: Actor = PYTHON) -> ResentDeliveries:
    """Resend deliveries of enabled endpoints. The first of each endpoint is sent at once."""
    with db.atomic():
        enabled = of(tenant).filter(deliveries__in=list(ids), enabled=True).distinct().values_list("pk", flat=True)
        endpoints = of(tenant).filter(pk__in=list(enabled), enabled=True).order_by("pk")
        locked = list(endpoints.select_for_update(no_key=True))
        rows = WebhookDelivery.objects.filter(endpoint_id__in=[endpoint.pk for endpoint in locked]).order_by("pk")
        endpoint_of: dict[UUID, UUID] = {}
        in_flight = 0
        for start in range(0, len(ids), BATCH_SIZE):
            found = rows.filter(pk__in=ids[start : start + BATCH_SIZE]).select_for_update()
            for pk, endpoint_id, lease_token in found.values_list("pk", "endpoint_id", "lease_token"):
                if lease_token is None:
                    endpoint_of[pk] = endpoint_id
                else:
                    in_flight += 1
        first = {endpoint_id: pk for pk, endpoint_id in reversed(endpoint_of.items())}
        resent = _requeue(list(endpoint_of), probes=list(first.values()))
        counts, waiting = Counter(endpoint_of.values()), 0
        for endpoint in locked:
            if not counts[endpoint.pk]:
                continue
            sent = {"deliveries": counts[endpoint.pk]}
            activity.record(Action.ENDPOINT_RESEND, _to_object(endpoint), actor=actor, after=sent)
            if _is_suspended(endpoint):
                waiting += counts[endpoint.pk] - 1
        existing = deliveries_of(tenant).filter(pk__in=list(ids)).count()
    db.after_commit(sender.wake_senders)
    logger.info("%d webhook deliveries resent by %s", resent, actor)
    return ResentDeliveries(resent, waiting, existing - resent - in_flight, in_flight, len(set(ids)) - existing)


def _is_suspended(endpoint: WebhookEndpoint) -> bool:
    """Return whether the deliveries of an endpoint wait until one succeeds or its circuit closes."""
    is_open = endpoint.open_until is not None and endpoint.open_until > clock.now()
    return is_open or circuit_breaker.is_tripped(endpoint.failures)


def resend_failed(
    endpoint_id: UUID | str, *, since: datetime | None = None, tenant: str | None = None, actor: Actor = PYTHON
) -> int:
    """Resend the failed deliveries of an endpoint, oldest first, at most API_BULK_LIMIT; return their number.

    `since` leaves out older ones. The first is sent at once; while the circuit is open, the others wait for it.
    """
    with db.atomic():
        endpoint = _lock_enabled(endpoint_id, tenant)
        failed = WebhookDelivery.objects.filter(endpoint_id=endpoint.pk, status=DeliveryStatus.FAILED)
        if since is not None:
            failed = failed.filter(pk__gte=min_id_at(fields.parse_time(since, "since")))
        ids = list(failed.order_by("pk").values_list("pk", flat=True)[: conf.API_BULK_LIMIT])
        resent = _requeue(ids, probes=ids[:1])
        if resent:
            sent = {"deliveries": resent}
            activity.record(Action.ENDPOINT_RESEND, _to_object(endpoint), actor=actor, after=sent)
    db.after_commit(sender.wake_senders)
    _log_change(endpoint, f"{resent} failed deliveries resent", actor)
    return resent


def _requeue(ids: Sequence[UUID], *, probes: Sequence[UUID]) -> int:
    """Make deliveries pending again, except those in flight. `probes` are sent although the circuit is open."""
    resent = 0
    for start in range(0, len(ids), BATCH_SIZE):
        deliveries = WebhookDelivery.objects.filter(pk__in=ids[start : start + BATCH_SIZE], lease_token__isnull=True)
        resent += deliveries.update(
            status=DeliveryStatus.PENDING,
            attempts_before=F("attempts"),
            next_try_at=Now(),
            probe=Q(pk__in=probes),
            delivered_at=None,
            response_status=None,
            error="",
        )
    return resent


def _parse_url(value: Any) -> str:
    url = fields.parse_text(value, "url", max_length=url_guard.MAX_URL_LENGTH, single_line=True)
    try:
        url_guard.parse_destination(url)
    except url_guard.RejectedUrl as error:
        raise InvalidInput("url", str(error), "url") from None
    return url


VALIDATORS: dict[str, Any] = {
    "url": _parse_url,
    "events": events.parse_events,
    "enabled": lambda value: fields.parse_boolean(value, "enabled"),
}


def _to_object(endpoint: WebhookEndpoint) -> activity.ChangedObject:
    return activity.ChangedObject(endpoint.pk, str(endpoint), endpoint.tenant)


def _build_fields(endpoint: WebhookEndpoint) -> dict[str, Any]:
    """Return the fields that an activity records; secrets are none of them."""
    return {name: getattr(endpoint, name) for name in VALIDATORS}


def _lock(endpoint_id: UUID | str, tenant: str | None) -> WebhookEndpoint:
    return _find(of(tenant).select_for_update(no_key=True), endpoint_id)


def _lock_enabled(endpoint_id: UUID | str, tenant: str | None) -> WebhookEndpoint:
    endpoint = _lock(endpoint_id, tenant)
    if not endpoint.enabled:
        raise EndpointDisabled(_("This endpoint is disabled; enable it first."))
    return endpoint


def _find(rows: QuerySet[Any], pk: UUID | str) -> Any:
    row = rows.filter(pk=fields.parse_id(pk)).first()
    if row is None:
        raise NotFound(_("There is no such object."))
    return row


def _log_change(endpoint: WebhookEndpoint, change: str, actor: Actor) -> None:
    logger.info("webhook endpoint %s (tenant %s): %s by %s", endpoint.pk, endpoint.tenant, change, actor)
