"""One try: sign the body, look the address up, judge it, send. Whatever happens becomes an outcome."""

from __future__ import annotations

import logging
import math
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from django.utils.translation import gettext as _

from jobs.conf import conf
from jobs.version import __version__
from webhooks import addresses, signing, wire
from webhooks.leases import Outcome, Task

logger = logging.getLogger("webhooks.trying")
LONGEST_REST_SEC = 86_400.0


def attempt(task: Task) -> Outcome:
    """Never raises, and takes no longer than WEBHOOK_TIMEOUT_SEC."""
    began = time.monotonic()
    try:
        answer = _sent(task, began + conf.WEBHOOK_TIMEOUT_SEC)
    except (addresses.Refused, wire.NotAnswered) as error:
        return Outcome(task, _ms_since(began), error=str(error))
    except Exception as error:
        logger.exception("delivery %s could not be sent", task.id)
        return Outcome(task, _ms_since(began), error=f"{type(error).__name__}: {error}")
    return Outcome(
        task,
        _ms_since(began),
        status=answer.status,
        head=answer.head,
        body=answer.body.decode(errors="replace"),
        error=_complaint(answer),
        retry_after_sec=rest_sec(answer.retry_after),
    )


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


def _sent(task: Task, deadline: float) -> wire.Answer:
    if task.keys is None:
        raise wire.NotAnswered(_("not sent: the secret cannot be read with the present key; rotate it"))
    place = addresses.destination(task.url)
    found = addresses.checked(place, deadline - time.monotonic())
    headers = {
        "Host": place.host_header,
        "Content-Type": "application/json",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": f"jobscheduler-webhooks/{__version__}",
        **signing.headers(str(task.id), math.floor(time.time()), task.body, task.keys),
    }
    return wire.post(place, found, headers, task.body, deadline=deadline, proxy=conf.WEBHOOK_PROXY)


def _complaint(answer: wire.Answer) -> str:
    if 200 <= answer.status < 300:
        return ""
    if 300 <= answer.status < 400:
        return _("answered %d; redirects are not followed") % answer.status
    return _("answered %d") % answer.status


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
