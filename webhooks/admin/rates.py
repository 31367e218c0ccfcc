"""How well endpoints received what they were sent of late, for a whole page of them at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, OuterRef, Q, Subquery

from jobs import clock
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint

LAST = 100  # deliveries that a rate is made of: a receiver of millions is not counted through


def lately(ids: Sequence[UUID]) -> dict[UUID, tuple[int, int]]:
    """Of each endpoint, how many of its last deliveries within a day were received, and how many have ended."""
    since = clock.first_id(clock.now() - timedelta(hours=24))
    wanted = Q()
    for key, farthest in _hundredth(ids).items():
        wanted |= Q(endpoint_id=key, pk__gte=max(since, farthest))
    if not wanted:
        return {}
    ended: Any = WebhookDelivery.objects.filter(wanted).exclude(status=DeliveryStatus.PENDING)
    received = Count("pk", filter=Q(status=DeliveryStatus.DELIVERED))
    rows = ended.order_by().values_list("endpoint_id").annotate(well=received, every=Count("pk"))
    return {key: (well, every) for key, well, every in rows}


def _hundredth(ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """From where on to read, along the index of each endpoint's deliveries."""
    own = WebhookDelivery.objects.filter(endpoint_id=OuterRef("pk")).order_by("-pk").values("pk")
    rows: Any = WebhookEndpoint.objects.filter(pk__in=list(ids)).order_by()
    found = rows.annotate(far=Subquery(own[LAST - 1 : LAST])).values_list("pk", "far")
    return {key: far or UUID(int=0) for key, far in found}
