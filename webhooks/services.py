"""The front door: endpoints and deliveries as the API, the console and other code keep them.

`tenant` narrows what is found; None is all of them. What belongs to somebody else is not there.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.errors import Conflict, InvalidInput, NotFound
from jobs.ids import min_id_at
from jobs.validation import fields
from webhooks import deliveries as leases
from webhooks import events, payloads, secrets, sender, subscriptions, url_guard
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage

logger = logging.getLogger("webhooks.services")
BOTH_SIGN = timedelta(hours=24)  # how long a replaced secret signs along
MOST_ENDPOINTS = 200  # of one tenant
CHUNK = 1000


class Disabled(Conflict):
    code = "endpoint_disabled"


class TooMany(Conflict):
    code = "too_many_endpoints"


def create(
    url: Any, event_names: Any, *, tenant: str = "default", enabled: Any = True, actor: Actor = PYTHON
) -> tuple[WebhookEndpoint, str]:
    """A new endpoint, and its secret: this is the only time that it is shown."""
    secret = secrets.new_secret()
    endpoint = WebhookEndpoint(
        tenant=fields.parse_tenant(tenant),
        url=_url(url),
        events=events.parse_events(event_names),
        enabled=fields.parse_boolean(enabled, "enabled"),
    )
    endpoint.secret = secrets.encrypt_secret(secret, endpoint.pk)
    with db.atomic():
        if of(endpoint.tenant).count() >= MOST_ENDPOINTS:
            raise TooMany(_("A tenant may have no more than %d endpoints.") % MOST_ENDPOINTS)
        endpoint.save(using=db.alias(), force_insert=True)
        subscriptions.write_subscriptions(endpoint)
    _log(endpoint, "made", actor)
    return get(endpoint.pk), secrets.format_secret(secret)


def of(tenant: str | None) -> QuerySet[WebhookEndpoint]:
    found = WebhookEndpoint.objects.all()
    return found if tenant is None else found.filter(tenant=tenant)


def get(endpoint_id: UUID | str, *, tenant: str | None = None) -> WebhookEndpoint:
    return _found(of(tenant), endpoint_id)


def update(
    endpoint_id: UUID | str, changes: Mapping[str, Any], *, tenant: str | None = None, actor: Actor = PYTHON
) -> WebhookEndpoint:
    """Change an endpoint. Enabling it closes its circuit; what is pending when it is disabled has FAILED."""
    clean: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in GATES:
            raise InvalidInput(str(name)[:100], _("is not a field of an endpoint"), "extra_forbidden")
        clean[name] = GATES[name](value)
    with db.atomic():
        endpoint = _lock(endpoint_id, tenant)
        if clean.get("enabled") and not endpoint.enabled:
            clean |= {"disabled_reason": "", "failures": 0, "open_until": None, "failing_since": None}
        if clean:
            of(tenant).filter(pk=endpoint.pk).update(**clean)
            endpoint.refresh_from_db(fields=["events", "enabled"])
        if clean.get("enabled") is False:
            leases.disable_endpoint(endpoint)
        else:
            subscriptions.write_subscriptions(endpoint)
    _log(endpoint, "changed", actor)
    return get(endpoint.pk)


def delete(endpoint_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> None:
    """With its deliveries, and messages that nobody else got. Disabled first, so that no more are made."""
    with db.atomic():
        endpoint = _lock(endpoint_id, tenant)
        leases.disable_endpoint(endpoint)
    own = WebhookDelivery.objects.filter(endpoint_id=endpoint.pk)
    while message_of := dict(own.values_list("pk", "message_id")[:CHUNK]):
        with db.atomic():
            WebhookAttempt.objects.filter(delivery_id__in=list(message_of))._raw_delete(db.alias())
            own.filter(pk__in=list(message_of))._raw_delete(db.alias())
            messages = WebhookMessage.objects.filter(pk__in=message_of.values(), fanned_out_at__isnull=False)
            messages.filter(deliveries__isnull=True).delete()
    of(tenant).filter(pk=endpoint.pk).delete()
    _log(endpoint, "deleted", actor)


def rotate_secret(
    endpoint_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON
) -> tuple[WebhookEndpoint, str]:
    """A new secret, shown once. The former one signs along for a day, so that the receiver can change over."""
    secret = secrets.new_secret()
    with db.atomic():
        endpoint = _lock(endpoint_id, tenant)
        of(tenant).filter(pk=endpoint.pk).update(
            secret=secrets.encrypt_secret(secret, endpoint.pk),
            old_secret=endpoint.secret,
            old_secret_until=Now() + BOTH_SIGN,
        )
    _log(endpoint, "given a new secret", actor)
    return get(endpoint.pk), secrets.format_secret(secret)


def send_test(endpoint_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> WebhookDelivery:
    """A delivery of its own kind, tried at once whatever the circuit says."""
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
    db.after_commit(sender.wake_senders)
    _log(endpoint, "sent a test", actor)
    return get_delivery(delivery.pk)


def deliveries(tenant: str | None) -> QuerySet[WebhookDelivery]:
    found = WebhookDelivery.objects.all()
    return found if tenant is None else found.filter(endpoint__tenant=tenant)


def get_delivery(delivery_id: UUID | str, *, tenant: str | None = None) -> WebhookDelivery:
    return _found(deliveries(tenant), delivery_id)


def count_deliveries(job_ids: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """Return `{pending, delivered, failed}` of jobs that have any. What fan-out is about to make counts as pending."""
    counts: dict[UUID, dict[str, int]] = defaultdict(lambda: {"pending": 0, "delivered": 0, "failed": 0})
    rows = WebhookDelivery.objects.filter(job_id__in=job_ids).order_by()
    for job_id, status, number in rows.values_list("job_id", "status").annotate(number=Count("pk")):
        counts[job_id][status.lower()] += number
    for job_id, number in count_about_to_be_made(job_ids).items():
        counts[job_id]["pending"] += number
    return dict(counts)


def count_about_to_be_made(job_ids: Sequence[UUID]) -> Counter[UUID]:
    """Return how many deliveries the messages of these jobs that are not fanned out will become."""
    messages = list(WebhookMessage.objects.of_jobs(job_ids).filter(fanned_out_at__isnull=True).defer("body").order_by())
    recipients = subscriptions.find_recipients(messages) if messages else {}
    counts: Counter[UUID] = Counter()
    for message in messages:
        counts[message.job_id] += len(recipients[message.pk])
    return +counts  # those that nobody wants make none


def resend(delivery_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> WebhookDelivery:
    """Try again now, whatever became of it and whatever the circuit says: same id, same body, all retries anew."""
    delivery = get_delivery(delivery_id, tenant=tenant)
    with db.atomic():
        endpoint = _lock_enabled(delivery.endpoint_id, tenant)
        _again([delivery.pk], probes=[delivery.pk])
    db.after_commit(sender.wake_senders)
    _log(endpoint, f"resent {delivery.pk}", actor)
    return get_delivery(delivery.pk)


def resend_many(ids: Sequence[UUID], *, tenant: str | None = None, actor: Actor = PYTHON) -> int:
    """Resend those whose endpoints are enabled; return how many. The first of each endpoint is tried at once."""
    with db.atomic():
        enabled = of(tenant).filter(deliveries__in=list(ids), enabled=True).distinct().values_list("pk", flat=True)
        locked = list(
            of(tenant).filter(pk__in=list(enabled), enabled=True).order_by("pk").select_for_update(no_key=True)
        )
        rows = WebhookDelivery.objects.filter(endpoint_id__in=[endpoint.pk for endpoint in locked]).order_by("pk")
        endpoint_of: dict[UUID, UUID] = {}
        for start in range(0, len(ids), CHUNK):
            endpoint_of |= dict(rows.filter(pk__in=ids[start : start + CHUNK]).values_list("pk", "endpoint_id"))
        first = {endpoint_id: pk for pk, endpoint_id in reversed(endpoint_of.items())}
        resent = _again(list(endpoint_of), probes=list(first.values()))
    db.after_commit(sender.wake_senders)
    logger.info("%d webhook deliveries resent by %s", resent, actor.name or actor.kind)
    return resent


def resend_failed(
    endpoint_id: UUID | str, *, since: datetime | None = None, tenant: str | None = None, actor: Actor = PYTHON
) -> int:
    """Resend all that failed at an endpoint (since a time), at most API_BULK_LIMIT at once; return how many.

    The first is tried at once; while the circuit is open, the others wait for it.
    """
    with db.atomic():
        endpoint = _lock_enabled(endpoint_id, tenant)
        failed = WebhookDelivery.objects.filter(endpoint_id=endpoint.pk, status=DeliveryStatus.FAILED)
        if since is not None:
            failed = failed.filter(pk__gte=min_id_at(fields.parse_time(since, "since")))
        ids = list(failed.order_by("pk").values_list("pk", flat=True)[: conf.API_BULK_LIMIT])
        resent = _again(ids, probes=ids[:1])
    db.after_commit(sender.wake_senders)
    _log(endpoint, f"resent {resent} failed deliveries", actor)
    return resent


def _again(ids: Sequence[UUID], *, probes: Sequence[UUID]) -> int:
    """Make deliveries pending again; one that is being sent right now is left alone. `probes` are tried at once."""
    resent = 0
    for start in range(0, len(ids), CHUNK):
        deliveries = WebhookDelivery.objects.filter(pk__in=ids[start : start + CHUNK], lease_token__isnull=True)
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


def _url(value: Any) -> str:
    url = fields.parse_text(value, "url", max_length=url_guard.MAX_URL_LENGTH, single_line=True)
    try:
        url_guard.parse_destination(url)
    except url_guard.RejectedUrl as error:
        raise InvalidInput("url", str(error), "url") from None
    return url


GATES: dict[str, Any] = {
    "url": _url,
    "events": events.parse_events,
    "enabled": lambda value: fields.parse_boolean(value, "enabled"),
}


def _lock(endpoint_id: UUID | str, tenant: str | None) -> WebhookEndpoint:
    return _found(of(tenant).select_for_update(no_key=True), endpoint_id)


def _lock_enabled(endpoint_id: UUID | str, tenant: str | None) -> WebhookEndpoint:
    endpoint = _lock(endpoint_id, tenant)
    if not endpoint.enabled:
        raise Disabled(_("This endpoint is disabled; enable it first."))
    return endpoint


def _found(rows: QuerySet[Any], pk: UUID | str) -> Any:
    found = rows.filter(pk=fields.parse_id(pk)).first()
    if found is None:
        raise NotFound(_("There is no such object."))
    return found


def _log(endpoint: WebhookEndpoint, what: str, actor: Actor) -> None:
    logger.info(
        "webhook endpoint %s of tenant %s %s by %s", endpoint.pk, endpoint.tenant, what, actor.name or actor.kind
    )
