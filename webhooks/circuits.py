"""What repeated failures mean for an endpoint: it is left alone for a while, then tried with a single delivery.

A failed try speaks for all that was due then: while a circuit is open, deliveries go through their retries without each
of them waiting for a receiver that is not there.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db
from jobs.conf import conf
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint

BREAK_AFTER = 5  # failures in a row
LONGEST_PAUSE_SEC = 300.0
LONGEST_BACKOFF_SEC = 86_400.0


def is_broken(failures: int) -> bool:
    return failures >= BREAK_AFTER


def pause_sec(failures: int) -> float:
    """How long an endpoint is left alone after so many failures in a row."""
    return min(conf.WEBHOOK_BACKOFF_SEC * 2 ** min(failures - BREAK_AFTER, 30), LONGEST_PAUSE_SEC)


def backoff_sec(failed: int) -> float:
    """How long a delivery waits after its n-th failure."""
    return min(conf.WEBHOOK_BACKOFF_SEC * 2 ** min(failed - 1, 30), LONGEST_BACKOFF_SEC)


def is_over(failed: int) -> bool:
    """Whether a delivery that failed so often is given up: one try, and the retries."""
    return failed > conf.WEBHOOK_MAX_RETRIES


def after_failure(failed: int, *, at_least_sec: float = 0.0) -> dict[str, Any]:
    """The fields of a delivery after its n-th failure since it was sent or resent."""
    if is_over(failed):
        return {"status": DeliveryStatus.FAILED, "next_try_at": None}
    return {"next_try_at": from_now(max(backoff_sec(failed), at_least_sec))}


def from_now(seconds: float) -> Any:
    return Now() + timedelta(seconds=seconds)


def count_unreached(most: int) -> int:
    """Let the last failure of broken endpoints count for deliveries that were due then and were spared the try."""
    broken = WebhookEndpoint.objects.filter(enabled=True, failures__gte=BREAK_AFTER)
    counted = 0
    for pk, failures in broken.order_by("failed_at").values_list("pk", "failures"):
        if counted < most:
            counted += _count(pk, failures, most - counted)
    return counted


def _count(endpoint: UUID, failures: int, most: int) -> int:
    with db.atomic():
        rows = _spared(endpoint).select_for_update(skip_locked=True, of=("self",))[:most]
        by_failed: dict[int, list[UUID]] = {}
        for pk, attempts, before in rows.values_list("pk", "attempts", "attempts_before"):
            by_failed.setdefault(attempts - before + 1, []).append(pk)
        why = _("not tried: this endpoint had failed %d times in a row") % failures
        for failed, ids in by_failed.items():
            found = WebhookDelivery.objects.filter(pk__in=ids)
            found.update(attempts=F("attempts") + 1, error=why, response_status=None, **after_failure(failed))
    return sum(map(len, by_failed.values()))


def _spared(endpoint: UUID) -> QuerySet[WebhookDelivery]:
    rows = WebhookDelivery.objects.filter(endpoint_id=endpoint, status=DeliveryStatus.PENDING)
    return rows.filter(lease_token__isnull=True, next_try_at__lte=F("endpoint__failed_at")).order_by("next_try_at")
