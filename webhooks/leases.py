"""Who sends what: deliveries are leased, so that any number of senders share them, and recorded under their lease."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import cache, reduce
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.db.models import Case, F, Q, QuerySet, When
from django.db.models.functions import Coalesce, Now

from jobs import db
from jobs.conf import conf
from jobs.salvage import salvage_text
from webhooks import circuits, sealing, subscriptions
from webhooks.fanout import DISABLED
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage

logger = logging.getLogger("webhooks.leases")
CONCURRENT = 4  # tries at one endpoint at once, over all senders
LEASE_SEC, RENEW_SEC = 6.0, 2.0  # a sender that dies holds up what it had in hand for no longer
HEAD_LENGTH, ERROR_LENGTH = 16_384, 1000


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


def take(most: int) -> list[Task]:
    """Lease up to so many deliveries that are due, at most CONCURRENT an endpoint.

    An endpoint whose circuit was broken gets one alone; one whose circuit is open only what a person resent.
    """
    connection = db.connection()
    if db.is_sqlite() and not _with_room(connection, most):  # its only writer is not kept waiting for a look
        return []
    token = uuid4()
    tasks: list[Task] = []
    with db.atomic():
        for endpoint, in_flight in _with_room(connection, most):
            tasks += endpoint.due(connection, most - len(tasks), in_flight, token)
        if tasks:
            leased = _deliveries().filter(pk__in=[each.id for each in tasks])
            leased.update(lease_token=token, lease_expires_at=circuits.from_now(LEASE_SEC))
    return tasks


def renew(tasks: Collection[Task]) -> None:
    """While their answers are awaited. What is no longer ours stays so."""
    mine = _deliveries().filter(pk__in=[each.id for each in tasks], lease_token__in={each.token for each in tasks})
    mine.update(lease_expires_at=circuits.from_now(LEASE_SEC))


def record(outcomes: Sequence[Outcome]) -> None:
    """Endpoints first, in one order, then their deliveries: as everyone locks them."""
    with db.atomic():
        enabled = _note_health(outcomes)
        kept = _still_leased(outcomes)
        _settle(kept, enabled)
        WebhookAttempt.objects.bulk_create(
            WebhookAttempt(
                delivery_id=each.task.id,
                took_ms=each.took_ms,
                response_status=each.status,
                response_head=salvage_text(each.head, HEAD_LENGTH),
                response_body=salvage_text(each.body, len(each.body) or 1),
                error=salvage_text(each.error, ERROR_LENGTH),
            )
            for each in kept
        )


def disable(endpoint: WebhookEndpoint, reason: str = "") -> None:
    """Disable an endpoint whose row the caller has locked: what is pending has FAILED, but for what is being sent."""
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(enabled=False, disabled_reason=reason)
    endpoint.enabled = False
    subscriptions.write(endpoint)
    deliveries = _deliveries().filter(endpoint_id=endpoint.pk, status=DeliveryStatus.PENDING, lease_token__isnull=True)
    deliveries.update(status=DeliveryStatus.FAILED, next_try_at=None, probe=False, error=DISABLED)


class _Endpoint(NamedTuple):
    """One that has something due, as the database told it."""

    key: Any
    url: str
    secret: Any
    old_secret: Any
    signs_twice: Any
    failures: int
    is_open: Any

    def due(self, connection: Any, most: int, in_flight: int, token: UUID) -> list[Task]:
        """What is resent by a person comes first. It alone is sent while the circuit is open or being tried."""
        room = min(most, CONCURRENT - in_flight)
        rows = self._free(connection, _Due.PROBES, room) if self.is_open or self._is_broken else []
        if not self.is_open and not rows:
            if self._is_broken:
                rows = self._free(connection, _Due.NEWEST, min(room, 1 - in_flight))
            else:
                rows = self._free(connection, _Due.OLDEST, room)
        keys = self.keys() if rows else None
        return [
            Task(as_uuid(pk), token, as_uuid(self.key), self.url, bytes(body or b""), keys, failed)
            for pk, failed, body in rows
        ]

    @property
    def _is_broken(self) -> bool:
        return circuits.is_broken(self.failures)

    def _free(self, connection: Any, which: _Due, limit: int) -> list[Any]:
        return _asked(connection, _due(connection.vendor, which), [self.key, limit]) if limit > 0 else []

    def keys(self) -> tuple[bytes, ...] | None:
        sealed = [self.secret, *([self.old_secret] if self.old_secret and self.signs_twice else [])]
        try:
            return tuple(sealing.unseal(bytes(each)) for each in sealed)
        except sealing.Unreadable:
            return None


class _Due(Enum):
    """Which of the deliveries that are due: condition and order.

    A broken endpoint is tried with the newest first: it may be an older one that it chokes on.
    """

    OLDEST = "ORDER BY d.next_try_at"
    NEWEST = "ORDER BY d.next_try_at DESC"
    PROBES = "AND d.probe ORDER BY d.next_try_at"


def _with_room(connection: Any, most: int) -> list[tuple[_Endpoint, int]]:
    """Endpoints with something due, and how many deliveries are being sent to each.

    Whoever locks them next, counts after us; so what is under way is asked for once they are ours.
    """
    lock = connection.in_atomic_block
    found = [_Endpoint(*row) for row in _asked(connection, _ready(connection.vendor, lock), [most])]
    if not found:
        return []
    asked = _in_flight(connection.vendor, len(found))
    busy = dict(_asked(connection, asked, [each.key for each in found]))
    return [(each, in_flight) for each in found if (in_flight := busy.get(each.key, 0)) < CONCURRENT]


# Past the ORM, here and below: it would take longer to put these together than the database does to answer.

_ENDPOINT, _DELIVERY = WebhookEndpoint._meta.db_table, WebhookDelivery._meta.db_table


@cache
def _ready(vendor: str, lock: bool) -> str:
    """In no order, so that none is always last."""
    now = _now(vendor)
    free = f"SELECT 1 FROM {_DELIVERY} d WHERE d.endpoint_id = e.id AND {_free(now)}"  # noqa: S608 — our own words
    return f"""
    SELECT id, url, secret, old_secret, old_secret_until > {now}, failures, coalesce(open_until > {now}, false)
    FROM {_ENDPOINT} e
    WHERE enabled AND (((open_until IS NULL OR open_until <= {now}) AND EXISTS ({free})) OR EXISTS ({free} AND d.probe))
    ORDER BY random() LIMIT %s {"FOR NO KEY UPDATE SKIP LOCKED" if lock and vendor == "postgresql" else ""}
    """  # noqa: S608 — our own words


@cache
def _in_flight(vendor: str, endpoints: int) -> str:
    marks = ", ".join(["%s"] * endpoints)
    return f"""
    SELECT endpoint_id, count(*) FROM {_DELIVERY}
    WHERE endpoint_id IN ({marks}) AND lease_token IS NOT NULL AND lease_expires_at > {_now(vendor)}
    GROUP BY endpoint_id
    """  # noqa: S608 — our own words


@cache
def _due(vendor: str, which: _Due) -> str:
    return f"""
    SELECT d.id, d.attempts - d.attempts_before, m.body
    FROM {_DELIVERY} d JOIN {WebhookMessage._meta.db_table} m ON m.id = d.message_id
    WHERE d.endpoint_id = %s AND {_free(_now(vendor))} {which.value} LIMIT %s
    {"FOR UPDATE OF d SKIP LOCKED" if vendor == "postgresql" else ""}
    """  # noqa: S608 — our own words


def _free(now: str) -> str:
    over = f"(d.lease_expires_at IS NULL OR d.lease_expires_at <= {now})"
    return f"d.status = '{DeliveryStatus.PENDING}' AND d.next_try_at <= {now} AND {over}"


def _now(vendor: str) -> str:
    """SQLite's clock ticks in milliseconds: what is of the present one has come."""
    return "statement_timestamp()" if vendor == "postgresql" else "strftime('%%Y-%%m-%%d %%H:%%M:%%f999', 'now')"


def _asked(connection: Any, sql: str, params: Sequence[Any]) -> list[Any]:
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
        pause = circuits.pause_sec(failures) if circuits.is_broken(failures) else 0.0
        if outcome.status in (429, 503):  # it asked for a rest
            pause = max(pause, outcome.retry_after_sec or 0.0)
        return Health(failures, self.closed, pause or self.pause_sec)

    def fields(self) -> dict[str, Any]:
        until = {"open_until": circuits.from_now(self.pause_sec)} if self.pause_sec else {}
        since: Any = None
        if self.failures:
            since = Now() if self.closed else Coalesce("failing_since", Now())
        closed = {"open_until": None} if self.closed else {}
        return {"failures": self.failures, "failing_since": since, **closed, **until}


def _note_health(outcomes: Sequence[Outcome]) -> set[UUID]:
    """Returns the endpoints that are enabled."""
    by_endpoint: dict[UUID, list[Outcome]] = {}
    for each in outcomes:
        by_endpoint.setdefault(each.task.endpoint_id, []).append(each)
    failing_for_long = Q(failing_since__lte=Now() - timedelta(seconds=conf.WEBHOOK_GIVE_UP_SEC))
    locked = WebhookEndpoint.objects.filter(pk__in=list(by_endpoint)).order_by("pk").select_for_update(no_key=True)
    enabled: set[UUID] = set()
    alike: dict[Health, list[UUID]] = {}
    for endpoint in locked.annotate(failing_for_long=Case(When(failing_for_long, then=True), default=False)):
        outcomes_here = by_endpoint[endpoint.pk]
        health = reduce(Health.after, outcomes_here, Health(endpoint.failures))
        if health != Health(0, closed=True) or endpoint.failures or endpoint.open_until is not None:
            alike.setdefault(health, []).append(endpoint.pk)
        if endpoint.enabled and any(each.is_gone for each in outcomes_here):
            logger.warning("webhook endpoint %s answered 410 Gone and is disabled", endpoint.pk)
            disable(endpoint, GONE)
        elif (
            endpoint.enabled and endpoint.failing_for_long and circuits.is_broken(health.failures) and not health.closed
        ):
            since = f"{endpoint.failing_since:%Y-%m-%d %H:%M} UTC"
            logger.warning("webhook endpoint %s has failed since %s and is disabled", endpoint.pk, since)
            disable(endpoint, GIVEN_UP % since)
        elif endpoint.enabled:
            enabled.add(endpoint.pk)
    for health, ids in alike.items():
        WebhookEndpoint.objects.filter(pk__in=ids).update(**health.fields())
    return enabled


GONE = "The receiver answered 410 Gone."
GIVEN_UP = "Nothing but failures since %s."


def _still_leased(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those whose lease is still ours, each once; the others are not ours to tell."""
    told = {each.task.id: each for each in outcomes}
    rows = _deliveries().filter(pk__in=list(told)).order_by("pk").select_for_update()
    token_of = dict(rows.values_list("pk", "lease_token"))
    for each in told.values():
        if token_of.get(each.task.id) != each.task.token:
            logger.info("delivery %s: its lease ran out before its try was recorded", each.task.id)
    return [each for each in told.values() if token_of.get(each.task.id) == each.task.token]


def _settle(outcomes: Sequence[Outcome], enabled: Collection[UUID]) -> None:
    """Write down how tries went; those that went alike, together."""
    alike: dict[tuple[Any, ...], list[Outcome]] = {}
    for each in outcomes:
        is_final = each.is_gone or each.task.endpoint_id not in enabled
        alike.setdefault((each.status, each.error, each.task.failed, each.retry_after_sec, is_final), []).append(each)
    for (status, error, failed, rest_sec, is_final), group in alike.items():
        if not error:
            then: dict[str, Any] = {"status": DeliveryStatus.DELIVERED, "next_try_at": None, "delivered_at": Now()}
        elif is_final:
            then = {"status": DeliveryStatus.FAILED, "next_try_at": None}
        else:
            then = circuits.after_failure(failed + 1, at_least_sec=rest_sec or 0.0)
        _deliveries().filter(pk__in=[each.task.id for each in group]).update(
            attempts=F("attempts") + 1,
            lease_token=None,
            lease_expires_at=None,
            probe=False,
            response_status=status,
            error=salvage_text(error, ERROR_LENGTH),
            **then,
        )


def _deliveries() -> QuerySet[WebhookDelivery]:
    return WebhookDelivery.objects.all()
