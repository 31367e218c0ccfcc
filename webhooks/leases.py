"""Who sends what: deliveries are leased, so that any number of senders share them, and recorded under their lease."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from django.db.models import BooleanField, Count, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from jobs import db
from jobs.salvage import salvage_text
from webhooks import circuits, sealing
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint

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
    """Lease up to so many deliveries that are due, at most CONCURRENT an endpoint and one where it was broken."""
    if db.is_sqlite() and not _waiting().exists():  # its only writer is not kept waiting for a look
        return []
    with db.atomic():
        endpoints = list(_ready()[:most])
        busy = _in_flight([each.pk for each in endpoints])
        rows: list[tuple[Any, Any]] = []
        for each in endpoints:
            limit = 1 if circuits.is_broken(each.failures) else CONCURRENT
            room = min(limit - busy[each.pk], most - len(rows))
            rows += ((each, row) for row in _due(each)[: max(room, 0)])
        token = uuid4()
        ids = [row.pk for _, row in rows]
        if ids:
            until = circuits.from_now(LEASE_SEC)
            _deliveries().filter(pk__in=ids).update(lease_token=token, lease_expires_at=until)
    return [_task(each, row, token) for each, row in rows]


def renew(tasks: Collection[Task]) -> None:
    """While their answers are awaited. What is no longer ours stays so."""
    mine = _deliveries().filter(pk__in=[each.id for each in tasks], lease_token__in={each.token for each in tasks})
    mine.update(lease_expires_at=circuits.from_now(LEASE_SEC))


def record(outcomes: Sequence[Outcome]) -> None:
    """Endpoints first, in one order, then their deliveries: as everyone locks them."""
    with db.atomic():
        for endpoint_id in sorted({each.task.endpoint_id for each in outcomes}):
            _note_health(endpoint_id, [each for each in outcomes if each.task.endpoint_id == endpoint_id])
        kept = [each for each in outcomes if _settle(each)]
        WebhookAttempt.objects.using(db.alias()).bulk_create(
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


def give_up_disabled(endpoint_id: UUID) -> int:
    """What a disabled endpoint was still owed has failed; what is on the wire right now says so itself."""
    deliveries = _deliveries().filter(endpoint_id=endpoint_id, status=DeliveryStatus.PENDING, lease_token__isnull=True)
    return deliveries.update(status=DeliveryStatus.FAILED, next_try_at=None, error=DISABLED)


DISABLED = "the endpoint is disabled"


def _ready() -> QuerySet[WebhookEndpoint]:
    """Endpoints with something due, in no order, so that none is always last; who locks them next, counts after us."""
    both = ExpressionWrapper(Q(old_secret_until__gt=Now()), output_field=BooleanField())
    return _waiting().annotate(signs_twice=both).order_by("?").select_for_update(skip_locked=True, no_key=True)


def _waiting() -> QuerySet[WebhookEndpoint]:
    due = _free().filter(endpoint_id=OuterRef("pk"))
    return WebhookEndpoint.objects.using(db.alias()).filter(circuits.tried_now()).filter(Exists(due))


def _free() -> QuerySet[WebhookDelivery]:
    over = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=Now())
    return _deliveries().filter(over, status=DeliveryStatus.PENDING, next_try_at__lte=Now())


def _due(endpoint: WebhookEndpoint) -> QuerySet[WebhookDelivery]:
    """A broken endpoint is probed with what has waited least: it may be an older one that it chokes on."""
    order = "-next_try_at" if circuits.is_broken(endpoint.failures) else "next_try_at"
    rows = _free().filter(endpoint_id=endpoint.pk).select_related("message").order_by(order)
    return rows.only("attempts", "attempts_before", "message__body").select_for_update(skip_locked=True, of=("self",))


def _in_flight(endpoints: Sequence[UUID]) -> Counter[UUID]:
    leased = _deliveries().filter(endpoint_id__in=endpoints, lease_token__isnull=False, lease_expires_at__gt=Now())
    return Counter(dict(leased.order_by().values_list("endpoint_id").annotate(n=Count("pk"))))


def _task(endpoint: Any, row: WebhookDelivery, token: UUID) -> Task:
    body, failed = bytes(row.message.body or b""), row.attempts - row.attempts_before
    return Task(row.pk, token, endpoint.pk, endpoint.url, body, _keys(endpoint), failed)


def _keys(endpoint: Any) -> tuple[bytes, ...] | None:
    sealed = [endpoint.secret, *([endpoint.old_secret] if endpoint.old_secret and endpoint.signs_twice else [])]
    try:
        return tuple(sealing.unseal(bytes(each)) for each in sealed)
    except sealing.Unreadable:
        return None


def _note_health(endpoint_id: UUID, outcomes: Iterable[Outcome]) -> None:
    row = WebhookEndpoint.objects.using(db.alias()).filter(pk=endpoint_id)
    for each in outcomes:
        if not each.error:
            row.exclude(failures=0, open_until__isnull=True).update(failures=0, open_until=None)
            continue
        row.update(failures=F("failures") + 1, failed_at=Now())
        failures = row.values_list("failures", flat=True).first() or 0
        pause = circuits.pause_sec(failures) if circuits.is_broken(failures) else 0.0
        if each.status in (429, 503):  # it asked for a rest
            pause = max(pause, each.retry_after_sec or 0.0)
        if pause:
            row.update(open_until=circuits.from_now(pause))
        if each.is_gone and row.filter(enabled=True).update(enabled=False, disabled_reason=GONE):
            logger.warning("webhook endpoint %s answered 410 Gone and is disabled", endpoint_id)
            give_up_disabled(endpoint_id)


GONE = "The receiver answered 410 Gone."


def _settle(outcome: Outcome) -> bool:
    """Write down how a try went, if its lease is still ours."""
    task = outcome.task
    mine = _deliveries().filter(pk=task.id, lease_token=task.token)
    said: dict[str, Any] = {
        "attempts": F("attempts") + 1,
        "lease_token": None,
        "lease_expires_at": None,
        "response_status": outcome.status,
        "error": salvage_text(outcome.error, ERROR_LENGTH),
    }
    if not outcome.error:
        well = {"status": DeliveryStatus.DELIVERED, "next_try_at": None, "delivered_at": Now()}
        return bool(mine.update(**said, **well))
    again = circuits.after_failure(task.failed + 1, at_least_sec=outcome.retry_after_sec or 0.0)
    if outcome.is_gone or not WebhookEndpoint.objects.using(db.alias()).filter(pk=task.endpoint_id, enabled=True):
        again = {"status": DeliveryStatus.FAILED, "next_try_at": None}
    if mine.update(**said, **again):
        return True
    logger.info("delivery %s: its lease ran out before its try was recorded", task.id)
    return False


def _deliveries() -> QuerySet[WebhookDelivery]:
    return WebhookDelivery.objects.using(db.alias())
