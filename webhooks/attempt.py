"""Make one attempt of a delivery: sign the body by the Standard Webhooks scheme, send it, return the result."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from django.utils.translation import gettext as _

from jobs.conf import conf
from jobs.version import __version__
from webhooks import http_client, url_guard
from webhooks.deliveries import AttemptResult, ClaimedDelivery

logger = logging.getLogger("webhooks.attempt")
MAX_RETRY_AFTER_SEC = 86_400.0


def attempt_delivery(delivery: ClaimedDelivery) -> AttemptResult:
    """Send a delivery. This never raises, and takes no longer than WEBHOOK_TIMEOUT_SEC."""
    started = time.monotonic()
    response = None
    try:
        if delivery.keys is None:
            raise http_client.NoResponse(_("not sent: the secret cannot be decrypted with the current key; rotate it"))
        headers = {
            "Content-Type": "application/json",
            "Accept": "*/*",
            "User-Agent": f"jobscheduler-webhooks/{__version__}",
            **signature_headers(str(delivery.id), int(time.time()), delivery.body, delivery.keys),
        }
        deadline = started + conf.WEBHOOK_TIMEOUT_SEC
        response = http_client.request(delivery.url, headers, delivery.body, deadline=deadline)
    except (url_guard.RejectedUrl, http_client.NoResponse) as failure:
        error = str(failure)
    except Exception as unexpected:
        logger.exception("delivery %s could not be sent", delivery.id)
        error = f"{type(unexpected).__name__}: {unexpected}"
    took_ms = round((time.monotonic() - started) * 1000)
    if response is None:
        return AttemptResult(delivery, took_ms, error=error)
    if 200 <= response.status < 300:
        error = ""
    elif 300 <= response.status < 400:
        error = _("answered %d; redirects are not followed") % response.status
    else:
        error = _("answered %d") % response.status
    text = response.body.decode(errors="replace")
    retry_after_sec = parse_retry_after(response.retry_after)
    return AttemptResult(delivery, took_ms, response.status, response.head, text, error, retry_after_sec)


def signature_headers(message_id: str, timestamp: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Return headers with one signature for each key: while a secret is rotated, the new and the old one verify."""
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def parse_retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date), at most a day; None for an invalid one."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER_SEC)
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max((until - datetime.now(UTC)).total_seconds(), 0.0), MAX_RETRY_AFTER_SEC)
