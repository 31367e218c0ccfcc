"""One try: sign the body by the Standard Webhooks scheme, send it. Whatever happens becomes an outcome."""

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
from webhooks.deliveries import Outcome, Task

logger = logging.getLogger("webhooks.attempt")
LONGEST_REST_SEC = 86_400.0


def attempt(task: Task) -> Outcome:
    """Send a delivery. Never raises, and takes no longer than WEBHOOK_TIMEOUT_SEC."""
    began = time.monotonic()
    answer = None
    try:
        if task.keys is None:
            raise http_client.NotAnswered(_("not sent: the secret cannot be read with the present key; rotate it"))
        headers = {
            "Content-Type": "application/json",
            "Accept": "*/*",
            "User-Agent": f"jobscheduler-webhooks/{__version__}",
            **sign(str(task.id), int(time.time()), task.body, task.keys),
        }
        answer = http_client.request(task.url, headers, task.body, deadline=began + conf.WEBHOOK_TIMEOUT_SEC)
    except (url_guard.Refused, http_client.NotAnswered) as refusal:
        error = str(refusal)
    except Exception as mistake:
        logger.exception("delivery %s could not be sent", task.id)
        error = f"{type(mistake).__name__}: {mistake}"
    took_ms = round((time.monotonic() - began) * 1000)
    if answer is None:
        return Outcome(task, took_ms, error=error)
    if 200 <= answer.status < 300:
        error = ""
    elif 300 <= answer.status < 400:
        error = _("answered %d; redirects are not followed") % answer.status
    else:
        error = _("answered %d") % answer.status
    text = answer.body.decode(errors="replace")
    return Outcome(task, took_ms, answer.status, answer.head, text, error, rest_sec(answer.retry_after))


def sign(message_id: str, timestamp: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Make one signature for each key: while a secret is being replaced, the new and the former one verify."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    signatures = (base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def rest_sec(header: str | None) -> float | None:
    """What Retry-After asks for: seconds, or a date; at most a day."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_REST_SEC)
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max((until - datetime.now(UTC)).total_seconds(), 0.0), LONGEST_REST_SEC)
