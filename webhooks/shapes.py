"""Endpoints and deliveries as JSON documents, in the contract's field names."""

from __future__ import annotations

from typing import Any

from jobs.shapes import moment
from webhooks.models import WebhookDelivery, WebhookEndpoint


def endpoint(row: WebhookEndpoint, secret: str | None = None) -> dict[str, Any]:
    """The secret is only ever at hand when it was made just now."""
    plain = ("tenant", "url", "events", "enabled", "disabled_reason", "failures")
    times = ("open_until", "old_secret_until", "created_at")
    return {
        "id": str(row.pk),
        **{name: getattr(row, name) for name in plain},
        **{name: moment(getattr(row, name)) for name in times},
        **({} if secret is None else {"secret": secret}),
    }


def delivery(row: WebhookDelivery) -> dict[str, Any]:
    plain = ("event", "status", "attempts", "response_status", "error")
    times = ("next_try_at", "created_at", "delivered_at")
    return {
        "id": str(row.pk),
        "endpoint_id": str(row.endpoint_id),
        "job_id": None if row.job_id is None else str(row.job_id),
        "group_id": None if row.group_id is None else str(row.group_id),
        **{name: getattr(row, name) for name in plain},
        **{name: moment(getattr(row, name)) for name in times},
    }
