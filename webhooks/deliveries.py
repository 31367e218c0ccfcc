"""Claim due deliveries and record the results of their attempts.

Deliveries are leased, so that any number of senders share them; a result is recorded under its lease only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.db.models import Case, Count, F, Q, When
from django.db.models.functions import Coalesce, Now

from jobs import db
from jobs.conf import conf
from jobs.models.expressions import from_now
from jobs.validation.sanitize import sanitize_text
from webhooks import circuit_breaker, secrets, subscriptions
from webhooks.fanout import DISABLED
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint

logger = logging.getLogger("webhooks.deliveries")
MAX_CONCURRENT = 4  # attempts at one endpoint at a time, by all senders together
LEASE_SEC, RENEW_SEC = 6.0, 2.0  # the deliveries of a sender that died wait this long
HEAD_LENGTH, ERROR_LENGTH = 16_384, 1000
GONE = 410  # the status by which a receiver asks for nothing more
GONE_REASON = "The receiver answered 410 Gone."
FAILING_REASON = "Nothing but failures since %s."


@dataclass(frozen=True)
class ClaimedDelivery:
    """A leased delivery to be sent now. `keys` is None if the secret cannot be decrypted."""

    id: UUID
    token: UUID
    endpoint_id: UUID
    url: str
    body: bytes
    keys: tuple[bytes, ...] | None
    failed: int  # attempts since it was created or resent


@dataclass(frozen=True)
class AttemptResult:
    """The result of one attempt; `error` is empty if the receiver accepted the delivery."""

    delivery: ClaimedDelivery
    took_ms: int
    status: int | None = None
    head: str = ""
    body: str = ""
    error: str = ""
    retry_after_sec: float | None = None


def claim_due(limit: int) -> list[ClaimedDelivery]:
    """Lease up to `limit` deliveries that are due, at most MAX_CONCURRENT of an endpoint.

    A tripped endpoint gets a single delivery; while its circuit is open, only deliveries that were resent.
    """
    connection = db.connection()
    # On SQLite a poll that finds nothing must not take the only write lock.
    if db.has_one_writer() and not _endpoints_with_capacity(connection, limit):
        return []
    token = uuid4()
    claimed: list[ClaimedDelivery] = []
    with db.atomic():
        for endpoint, in_flight in _endpoints_with_capacity(connection, limit):
            claimed += endpoint.select_due(connection, limit - len(claimed), in_flight, token)
        if claimed:
            leased = WebhookDelivery.objects.filter(pk__in=[delivery.id for delivery in claimed])
            leased.update(lease_token=token, lease_expires_at=from_now(LEASE_SEC))
    return claimed


def renew_leases(claimed: Collection[ClaimedDelivery]) -> None:
    """Extend the leases of deliveries in flight. A lease that was lost stays lost."""
    ids, tokens = [delivery.id for delivery in claimed], {delivery.token for delivery in claimed}
    leased = WebhookDelivery.objects.filter(pk__in=ids, lease_token__in=tokens)
    with db.atomic_on_sqlite():
        leased.update(lease_expires_at=from_now(LEASE_SEC))


def record_results(results: Sequence[AttemptResult]) -> None:
    """Write the results: endpoints first, by id, then their deliveries, as all writers lock them."""
    with db.atomic():
        enabled = _record_health(results)
        leased = _select_leased(results)
        _record_deliveries(leased, enabled)
        WebhookAttempt.objects.bulk_create(
            WebhookAttempt(
                delivery_id=result.delivery.id,
                took_ms=result.took_ms,
                response_status=result.status,
                response_head=sanitize_text(result.head, HEAD_LENGTH),
                response_body=sanitize_text(result.body, len(result.body) or 1),
                error=sanitize_text(result.error, ERROR_LENGTH),
            )
            for result in leased
        )


def disable_endpoint(endpoint: WebhookEndpoint, reason: str = "") -> None:
    """Disable an endpoint whose row the caller has locked. Its pending deliveries fail, except those in flight."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(enabled=False, disabled_reason=reason)
    endpoint.enabled = False
    subscriptions.write_subscriptions(endpoint)
    deliveries = WebhookDelivery.objects.filter(
        endpoint_id=endpoint.pk, status=DeliveryStatus.PENDING, lease_token__isnull=True
    )
    deliveries.update(status=DeliveryStatus.FAILED, next_try_at=None, probe=False, error=DISABLED)


class _Endpoint(NamedTuple):
    """An endpoint with due deliveries, as read from the database."""

    key: Any
    url: str
    secret: Any
    old_secret: Any
    uses_old_secret: Any
    failures: int
    is_open: Any

    def select_due(self, connection: Any, limit: int, in_flight: int, token: UUID) -> list[ClaimedDelivery]:
        """Return deliveries to send now. While the circuit is open or tripped, those that were resent come first.

        A tripped endpoint gets its newest delivery: an older one may be the cause of its failures.
        """
        capacity = min(limit, MAX_CONCURRENT - in_flight)
        is_tripped = circuit_breaker.is_tripped(self.failures)
        rows: list[Any] = []
        if self.is_open or is_tripped:
            rows = self._fetch_due(connection, "AND d.probe ORDER BY d.next_try_at", capacity, "delivery_probe")
        if is_tripped and not self.is_open and not rows:
            rows = self._fetch_due(connection, "ORDER BY d.next_try_at DESC", min(capacity, 1 - in_flight))
        elif not is_tripped and not self.is_open:
            rows = self._fetch_due(connection, "ORDER BY d.next_try_at", capacity)
        keys = self.decrypt_keys() if rows else None
        return [
            ClaimedDelivery(db.to_uuid(pk), token, db.to_uuid(self.key), self.url, bytes(body or b""), keys, failed)
            for pk, failed, body in rows
        ]

    def _fetch_due(self, connection: Any, condition: str, limit: int, index: str = "delivery_due") -> list[Any]:
        if limit <= 0:
            return []
        statement = db.pick(connection, postgresql=_DUE_ON_POSTGRESQL, sqlite=_DUE_ON_SQLITE)
        return _fetch(connection, statement.format(condition=condition, index=index), [self.key, limit])

    def decrypt_keys(self) -> tuple[bytes, ...] | None:
        """Return the keys to sign with; None if a secret cannot be decrypted."""
        tokens = [self.secret, *([self.old_secret] if self.old_secret and self.uses_old_secret else [])]
        try:
            return tuple(secrets.decrypt_secret(bytes(token), db.to_uuid(self.key)) for token in tokens)
        except secrets.UndecryptableSecret:
            return None


def _endpoints_with_capacity(connection: Any, limit: int) -> list[tuple[_Endpoint, int]]:
    """Return endpoints with due deliveries that can take one more, each with its number in flight.

    The number is read after the endpoints are locked: the next sender to lock them counts what this one claims.
    """
    statement = db.pick(connection, postgresql=_READY_ON_POSTGRESQL, sqlite=_READY_ON_SQLITE)
    endpoints = [_Endpoint(*row) for row in _fetch(connection, statement, [limit])]
    if not endpoints:
        return []
    leased = WebhookDelivery.objects.filter(
        endpoint_id__in=[endpoint.key for endpoint in endpoints], lease_token__isnull=False
    )
    in_flight_rows = leased.filter(lease_expires_at__gt=Now()).order_by().values_list("endpoint_id")
    count_of = dict(in_flight_rows.annotate(Count("pk")))
    counted = [(endpoint, count_of.get(db.to_uuid(endpoint.key), 0)) for endpoint in endpoints]
    return [(endpoint, in_flight) for endpoint, in_flight in counted if in_flight < MAX_CONCURRENT]


# Literal SQL: the ORM takes longer to build these statements than the database to run them. Endpoints come in random
# order, so that none is always last. SQLite's clock has milliseconds: the end of the current one is compared. It would
# search all pending deliveries for those that were resent (probes), which have an index of their own.

_READY_ON_POSTGRESQL = """
    SELECT id, url, secret, old_secret, old_secret_until > statement_timestamp(), failures,
           coalesce(open_until > statement_timestamp(), false)
    FROM jobscheduler_webhookendpoint e
    WHERE enabled AND (
        ((open_until IS NULL OR open_until <= statement_timestamp()) AND EXISTS (
            SELECT 1 FROM jobscheduler_webhookdelivery d
            WHERE d.endpoint_id = e.id AND d.status = 'PENDING' AND d.next_try_at <= statement_timestamp()
                  AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= statement_timestamp())))
        OR EXISTS (
            SELECT 1 FROM jobscheduler_webhookdelivery d
            WHERE d.endpoint_id = e.id AND d.probe AND d.status = 'PENDING' AND d.next_try_at <= statement_timestamp()
                  AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= statement_timestamp())))
    ORDER BY random() LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
"""
_READY_ON_SQLITE = """
    SELECT id, url, secret, old_secret, old_secret_until > now, failures, coalesce(open_until > now, false)
    FROM (SELECT strftime('%%Y-%%m-%%d %%H:%%M:%%f999', 'now') AS now), jobscheduler_webhookendpoint e
    WHERE enabled AND (
        ((open_until IS NULL OR open_until <= now) AND EXISTS (
            SELECT 1 FROM jobscheduler_webhookdelivery d
            WHERE d.endpoint_id = e.id AND d.status = 'PENDING' AND d.next_try_at <= now
                  AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= now)))
        OR EXISTS (
            SELECT 1 FROM jobscheduler_webhookdelivery d INDEXED BY delivery_probe
            WHERE d.endpoint_id = e.id AND d.probe AND d.status = 'PENDING' AND d.next_try_at <= now
                  AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= now)))
    ORDER BY random() LIMIT %s
"""
_DUE_ON_POSTGRESQL = """
    SELECT d.id, d.attempts - d.attempts_before, m.body
    FROM jobscheduler_webhookdelivery d JOIN jobscheduler_webhookmessage m ON m.id = d.message_id
    WHERE d.endpoint_id = %s AND d.status = 'PENDING' AND d.next_try_at <= statement_timestamp()
          AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= statement_timestamp()) {condition} LIMIT %s
    FOR UPDATE OF d SKIP LOCKED
"""
_DUE_ON_SQLITE = """
    SELECT d.id, d.attempts - d.attempts_before, m.body
    FROM jobscheduler_webhookdelivery d INDEXED BY {index} JOIN jobscheduler_webhookmessage m ON m.id = d.message_id
    WHERE d.endpoint_id = %s AND d.status = 'PENDING'
          AND d.next_try_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f999', 'now')
          AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f999', 'now'))
          {condition} LIMIT %s
"""


def _fetch(connection: Any, sql: str, params: Sequence[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


@dataclass(frozen=True)
class Health:
    """The state of an endpoint's circuit after results."""

    failures: int
    is_closed: bool = False  # by a success
    pause_sec: float = 0.0

    def add_result(self, result: AttemptResult) -> Health:
        """Return the state after one more result."""
        if not result.error:
            return Health(0, is_closed=True)
        failures = self.failures + 1
        pause = circuit_breaker.pause_sec(failures) if circuit_breaker.is_tripped(failures) else 0.0
        if result.status in (429, 503):  # Retry-After applies to the whole endpoint
            pause = max(pause, result.retry_after_sec or 0.0)
        return Health(failures, self.is_closed, pause or self.pause_sec)

    def fields(self) -> dict[str, Any]:
        """Return the columns of the endpoint to update."""
        failing_since = Now() if self.is_closed else Coalesce("failing_since", Now())
        fields: dict[str, Any] = {"failures": self.failures, "failing_since": failing_since if self.failures else None}
        if self.pause_sec:
            fields["open_until"] = from_now(self.pause_sec)
        elif self.is_closed:
            fields["open_until"] = None
        return fields


def _record_health(results: Sequence[AttemptResult]) -> set[UUID]:
    """Update the circuits of endpoints, and disable those that failed for long or are gone; return the enabled ones."""
    by_endpoint: dict[UUID, list[AttemptResult]] = {}
    for result in results:
        by_endpoint.setdefault(result.delivery.endpoint_id, []).append(result)
    failing_for_long = Q(failing_since__lte=Now() - timedelta(seconds=conf.WEBHOOK_GIVE_UP_SEC))
    locked = WebhookEndpoint.objects.filter(pk__in=list(by_endpoint)).order_by("pk").select_for_update(no_key=True)
    enabled: set[UUID] = set()
    ids_by_health: dict[Health, list[UUID]] = {}
    for endpoint in locked.annotate(failing_for_long=Case(When(failing_for_long, then=True), default=False)):
        health = reduce(Health.add_result, by_endpoint[endpoint.pk], Health(endpoint.failures))
        if health != Health(0, is_closed=True) or endpoint.failures or endpoint.open_until is not None:
            ids_by_health.setdefault(health, []).append(endpoint.pk)
        if not endpoint.enabled:
            continue
        if any(result.status == GONE for result in by_endpoint[endpoint.pk]):
            logger.warning("webhook endpoint %s answered 410 Gone and is disabled", endpoint.pk)
            disable_endpoint(endpoint, GONE_REASON)
        elif endpoint.failing_for_long and circuit_breaker.is_tripped(health.failures) and not health.is_closed:
            since = f"{endpoint.failing_since:%Y-%m-%d %H:%M} UTC"
            logger.warning("webhook endpoint %s has failed since %s and is disabled", endpoint.pk, since)
            disable_endpoint(endpoint, FAILING_REASON % since)
        else:
            enabled.add(endpoint.pk)
    for health, ids in ids_by_health.items():
        WebhookEndpoint.objects.filter(pk__in=ids).update(**health.fields())
    return enabled


def _select_leased(results: Sequence[AttemptResult]) -> list[AttemptResult]:
    """Lock the deliveries; return the results whose lease still holds, one for each delivery."""
    result_of = {result.delivery.id: result for result in results}
    rows = WebhookDelivery.objects.filter(pk__in=list(result_of)).order_by("pk").select_for_update()
    token_of = dict(rows.values_list("pk", "lease_token"))
    for pk, result in list(result_of.items()):
        if token_of.get(pk) != result.delivery.token:
            logger.info("delivery %s: its lease expired before its attempt was recorded", pk)
            del result_of[pk]
    return list(result_of.values())


def _record_deliveries(results: Sequence[AttemptResult], enabled: Collection[UUID]) -> None:
    """Write the results, with one statement for all that are equal."""
    ids_by_result: dict[tuple[Any, ...], list[UUID]] = {}
    for result in results:
        delivery, is_final = result.delivery, result.status == GONE or result.delivery.endpoint_id not in enabled
        key = (result.status, result.error, delivery.failed, result.retry_after_sec, is_final)
        ids_by_result.setdefault(key, []).append(delivery.id)
    for (status, error, failed, retry_after_sec, is_final), ids in ids_by_result.items():
        if not error:
            changes: dict[str, Any] = {"status": DeliveryStatus.DELIVERED, "next_try_at": None, "delivered_at": Now()}
        elif is_final or failed >= conf.WEBHOOK_MAX_RETRIES:  # the first attempt and its retries
            changes = {"status": DeliveryStatus.FAILED, "next_try_at": None}
        else:
            wait_sec = max(circuit_breaker.backoff_sec(failed + 1), retry_after_sec or 0.0)
            changes = {"next_try_at": from_now(wait_sec)}
        WebhookDelivery.objects.filter(pk__in=ids).update(
            attempts=F("attempts") + 1,
            lease_token=None,
            lease_expires_at=None,
            probe=False,
            response_status=status,
            error=sanitize_text(error, ERROR_LENGTH),
            **changes,
        )
