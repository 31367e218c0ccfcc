"""Who sends what: deliveries are leased, so that any number of senders share them, and recorded under their lease."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.db.models import Case, Count, F, Q, QuerySet, When
from django.db.models.functions import Coalesce, Now

from jobs import db
from jobs.conf import conf
from jobs.validation.sanitize import sanitize_text
from webhooks import circuit_breaker, secrets, subscriptions
from webhooks.fanout import DISABLED
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint

logger = logging.getLogger("webhooks.deliveries")
CONCURRENT = 4  # tries at one endpoint at once, over all senders
LEASE_SEC, RENEW_SEC = 6.0, 2.0  # a sender that dies holds up what it had in hand for no longer
HEAD_LENGTH, ERROR_LENGTH = 16_384, 1000
GONE = "The receiver answered 410 Gone."
GIVEN_UP = "Nothing but failures since %s."


@dataclass(frozen=True)
class Task:
    """A delivery to be tried now. `keys` is None if the secret cannot be read."""

    id: UUID
    token: UUID
    endpoint_id: UUID
    url: str
    body: bytes
    keys: tuple[bytes, ...] | None
    failed: int  # how often since it was sent or resent


@dataclass(frozen=True)
class Outcome:
    """How a try went; `error` is empty if it was well received."""

    task: Task
    took_ms: int
    status: int | None = None
    head: str = ""
    body: str = ""
    error: str = ""
    retry_after_sec: float | None = None

    @property
    def is_gone(self) -> bool:
        return self.status == 410


def take(limit: int) -> list[Task]:
    """Lease up to `limit` deliveries that are due, at most CONCURRENT an endpoint.

    An endpoint whose circuit was broken gets one alone; one whose circuit is open only what a person resent.
    """
    connection = db.connection()
    if db.is_sqlite() and not _with_room(connection, limit):  # its only writer is not kept waiting for a look
        return []
    token = uuid4()
    tasks: list[Task] = []
    with db.atomic():
        for endpoint, in_flight in _with_room(connection, limit):
            tasks += endpoint.find_due(connection, limit - len(tasks), in_flight, token)
        if tasks:
            leased = _deliveries().filter(pk__in=[task.id for task in tasks])
            leased.update(lease_token=token, lease_expires_at=circuit_breaker.from_now(LEASE_SEC))
    return tasks


def renew(tasks: Collection[Task]) -> None:
    """Prolong leases while answers are awaited. What is no longer ours stays so."""
    mine = _deliveries().filter(pk__in=[task.id for task in tasks], lease_token__in={task.token for task in tasks})
    mine.update(lease_expires_at=circuit_breaker.from_now(LEASE_SEC))


def record(outcomes: Sequence[Outcome]) -> None:
    """Write endpoints first, in one order, then their deliveries: as everyone locks them."""
    with db.atomic():
        enabled = _record_health(outcomes)
        kept = _still_leased(outcomes)
        _record_deliveries(kept, enabled)
        WebhookAttempt.objects.bulk_create(
            WebhookAttempt(
                delivery_id=outcome.task.id,
                took_ms=outcome.took_ms,
                response_status=outcome.status,
                response_head=sanitize_text(outcome.head, HEAD_LENGTH),
                response_body=sanitize_text(outcome.body, len(outcome.body) or 1),
                error=sanitize_text(outcome.error, ERROR_LENGTH),
            )
            for outcome in kept
        )


def disable(endpoint: WebhookEndpoint, reason: str = "") -> None:
    """Disable an endpoint whose row the caller has locked: what is pending has FAILED, but for what is being sent."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(enabled=False, disabled_reason=reason)
    endpoint.enabled = False
    subscriptions.write(endpoint)
    deliveries = _deliveries().filter(endpoint_id=endpoint.pk, status=DeliveryStatus.PENDING, lease_token__isnull=True)
    deliveries.update(status=DeliveryStatus.FAILED, next_try_at=None, probe=False, error=DISABLED)


class _Endpoint(NamedTuple):
    """An endpoint with something due, as the database has it."""

    key: Any
    url: str
    secret: Any
    old_secret: Any
    signs_twice: Any
    failures: int
    is_open: Any

    def find_due(self, connection: Any, limit: int, in_flight: int, token: UUID) -> list[Task]:
        """Put first what a person resent. It alone is sent while the circuit is open or being tried.

        A broken endpoint is tried with the newest first: it may be an older one that it chokes on.
        """
        room = min(limit, CONCURRENT - in_flight)
        is_broken = circuit_breaker.is_broken(self.failures)
        rows = self._due(connection, "AND d.probe ORDER BY d.next_try_at", room) if self.is_open or is_broken else []
        if is_broken and not self.is_open and not rows:
            rows = self._due(connection, "ORDER BY d.next_try_at DESC", min(room, 1 - in_flight))
        elif not is_broken and not self.is_open:
            rows = self._due(connection, "ORDER BY d.next_try_at", room)
        keys = self.decrypt_keys() if rows else None
        return [
            Task(as_uuid(pk), token, as_uuid(self.key), self.url, bytes(body or b""), keys, failed)
            for pk, failed, body in rows
        ]

    def _due(self, connection: Any, which: str, limit: int) -> list[Any]:
        if limit <= 0:
            return []
        statement = db.pick(connection, postgresql=_DUE_ON_POSTGRESQL, sqlite=_DUE_ON_SQLITE)
        return _fetch(connection, statement.format(which=which), [self.key, limit])

    def decrypt_keys(self) -> tuple[bytes, ...] | None:
        tokens = [self.secret, *([self.old_secret] if self.old_secret and self.signs_twice else [])]
        try:
            return tuple(secrets.decrypt_secret(bytes(token), as_uuid(self.key)) for token in tokens)
        except secrets.UndecryptableSecret:
            return None


def _with_room(connection: Any, limit: int) -> list[tuple[_Endpoint, int]]:
    """Return endpoints with something due, and how many deliveries are being sent to each.

    Whoever locks them next, counts after us; so what is under way is counted once they are ours.
    """
    statement = db.pick(connection, postgresql=_READY_ON_POSTGRESQL, sqlite=_READY_ON_SQLITE)
    endpoints = [_Endpoint(*row) for row in _fetch(connection, statement, [limit])]
    if not endpoints:
        return []
    leased = _deliveries().filter(endpoint_id__in=[endpoint.key for endpoint in endpoints], lease_token__isnull=False)
    running = leased.filter(lease_expires_at__gt=Now()).order_by().values_list("endpoint_id").annotate(Count("pk"))
    count_of = dict(running)
    counted = [(endpoint, count_of.get(as_uuid(endpoint.key), 0)) for endpoint in endpoints]
    return [(endpoint, in_flight) for endpoint, in_flight in counted if in_flight < CONCURRENT]


# Past the ORM: it would take longer to put these together than the database does to answer. Endpoints come in no order,
# so that none is always last. SQLite's clock ticks in milliseconds: what is of the present one has come.

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
            SELECT 1 FROM jobscheduler_webhookdelivery d
            WHERE d.endpoint_id = e.id AND d.probe AND d.status = 'PENDING' AND d.next_try_at <= now
                  AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= now)))
    ORDER BY random() LIMIT %s
"""
_DUE_ON_POSTGRESQL = """
    SELECT d.id, d.attempts - d.attempts_before, m.body
    FROM jobscheduler_webhookdelivery d JOIN jobscheduler_webhookmessage m ON m.id = d.message_id
    WHERE d.endpoint_id = %s AND d.status = 'PENDING' AND d.next_try_at <= statement_timestamp()
          AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= statement_timestamp()) {which} LIMIT %s
    FOR UPDATE OF d SKIP LOCKED
"""
_DUE_ON_SQLITE = """
    SELECT d.id, d.attempts - d.attempts_before, m.body
    FROM jobscheduler_webhookdelivery d JOIN jobscheduler_webhookmessage m ON m.id = d.message_id
    WHERE d.endpoint_id = %s AND d.status = 'PENDING'
          AND d.next_try_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f999', 'now')
          AND (d.lease_expires_at IS NULL OR d.lease_expires_at <= strftime('%%Y-%%m-%%d %%H:%%M:%%f999', 'now'))
          {which} LIMIT %s
"""


def _fetch(connection: Any, sql: str, params: Sequence[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def as_uuid(stored: UUID | str) -> UUID:
    """SQLite stores them as text."""
    return stored if isinstance(stored, UUID) else UUID(hex=stored)


@dataclass(frozen=True)
class Health:
    """What becomes of an endpoint."""

    failures: int
    closed: bool = False  # its circuit, if it was open
    pause_sec: float = 0.0

    def after(self, outcome: Outcome) -> Health:
        if not outcome.error:
            return Health(0, closed=True)
        failures = self.failures + 1
        pause = circuit_breaker.pause_sec(failures) if circuit_breaker.is_broken(failures) else 0.0
        if outcome.status in (429, 503):  # it asked for a rest
            pause = max(pause, outcome.retry_after_sec or 0.0)
        return Health(failures, self.closed, pause or self.pause_sec)

    def fields(self) -> dict[str, Any]:
        began = Now() if self.closed else Coalesce("failing_since", Now())
        fields: dict[str, Any] = {"failures": self.failures, "failing_since": began if self.failures else None}
        if self.pause_sec:
            fields["open_until"] = circuit_breaker.from_now(self.pause_sec)
        elif self.closed:
            fields["open_until"] = None
        return fields


def _record_health(outcomes: Sequence[Outcome]) -> set[UUID]:
    """Return the endpoints that are enabled afterwards."""
    by_endpoint: dict[UUID, list[Outcome]] = {}
    for outcome in outcomes:
        by_endpoint.setdefault(outcome.task.endpoint_id, []).append(outcome)
    failing_for_long = Q(failing_since__lte=Now() - timedelta(seconds=conf.WEBHOOK_GIVE_UP_SEC))
    locked = WebhookEndpoint.objects.filter(pk__in=list(by_endpoint)).order_by("pk").select_for_update(no_key=True)
    enabled: set[UUID] = set()
    alike: dict[Health, list[UUID]] = {}
    for endpoint in locked.annotate(failing_for_long=Case(When(failing_for_long, then=True), default=False)):
        health = reduce(Health.after, by_endpoint[endpoint.pk], Health(endpoint.failures))
        if health != Health(0, closed=True) or endpoint.failures or endpoint.open_until is not None:
            alike.setdefault(health, []).append(endpoint.pk)
        if not endpoint.enabled:
            continue
        if any(outcome.is_gone for outcome in by_endpoint[endpoint.pk]):
            logger.warning("webhook endpoint %s answered 410 Gone and is disabled", endpoint.pk)
            disable(endpoint, GONE)
        elif endpoint.failing_for_long and circuit_breaker.is_broken(health.failures) and not health.closed:
            since = f"{endpoint.failing_since:%Y-%m-%d %H:%M} UTC"
            logger.warning("webhook endpoint %s has failed since %s and is disabled", endpoint.pk, since)
            disable(endpoint, GIVEN_UP % since)
        else:
            enabled.add(endpoint.pk)
    for health, ids in alike.items():
        WebhookEndpoint.objects.filter(pk__in=ids).update(**health.fields())
    return enabled


def _still_leased(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return those whose lease is still ours, each once; the others are not ours to record."""
    outcome_of = {outcome.task.id: outcome for outcome in outcomes}
    rows = _deliveries().filter(pk__in=list(outcome_of)).order_by("pk").select_for_update()
    token_of = dict(rows.values_list("pk", "lease_token"))
    for pk, outcome in list(outcome_of.items()):
        if token_of.get(pk) != outcome.task.token:
            logger.info("delivery %s: its lease ran out before its try was recorded", pk)
            del outcome_of[pk]
    return list(outcome_of.values())


def _record_deliveries(outcomes: Sequence[Outcome], enabled: Collection[UUID]) -> None:
    """Write how tries went; those that went alike, together."""
    alike: dict[tuple[Any, ...], list[UUID]] = {}
    for outcome in outcomes:
        task, is_final = outcome.task, outcome.is_gone or outcome.task.endpoint_id not in enabled
        same = (outcome.status, outcome.error, task.failed, outcome.retry_after_sec, is_final)
        alike.setdefault(same, []).append(task.id)
    for (status, error, failed, retry_after_sec, is_final), ids in alike.items():
        if not error:
            then: dict[str, Any] = {"status": DeliveryStatus.DELIVERED, "next_try_at": None, "delivered_at": Now()}
        elif is_final or failed >= conf.WEBHOOK_MAX_RETRIES:  # one try, and the retries
            then = {"status": DeliveryStatus.FAILED, "next_try_at": None}
        else:
            then = {
                "next_try_at": circuit_breaker.from_now(
                    max(circuit_breaker.backoff_sec(failed + 1), retry_after_sec or 0.0)
                )
            }
        _deliveries().filter(pk__in=ids).update(
            attempts=F("attempts") + 1,
            lease_token=None,
            lease_expires_at=None,
            probe=False,
            response_status=status,
            error=sanitize_text(error, ERROR_LENGTH),
            **then,
        )


def _deliveries() -> QuerySet[WebhookDelivery]:
    return WebhookDelivery.objects.all()
