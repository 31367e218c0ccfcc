"""Bound the large requests that one token (or user) has in progress in a web process: bulk, groups and their actions.

Each takes seconds of the process and, on SQLite, of its write lock. Several of one token at once would make the
requests of all others wait; on SQLite those that follow each other leave the write lock to others in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, ClassVar

from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import Actor
from jobs.api.auth import Principal
from jobs.api.problems import TooManyRequests
from jobs.api.request_params import JsonBody, JsonBodyModel
from jobs.conf import conf
from jobs.validation.json import LIST_BYTES

RETRY_AFTER_SEC = 1.0
MAX_DELAY_SEC = 5.0


class LargeRequests:
    """The large requests of one token or user in this process."""

    in_progress = 0
    next_start_at = 0.0  # on the monotonic clock


_requests_of: dict[Actor, LargeRequests] = {}
_lock = Lock()


@contextmanager
def large_request(principal: Principal) -> Iterator[None]:
    """Count a large request while it is in progress; raise TooManyRequests past API_LARGE_REQUESTS of its token.

    On SQLite the next one of the token begins after a delay as long as this one took.
    """
    with _lock:
        requests = _require_capacity(principal.actor)
        requests.in_progress += 1
    try:
        time.sleep(max(requests.next_start_at - time.monotonic(), 0.0))
        began_at = time.monotonic()
        yield
        if db.has_one_writer():
            now = time.monotonic()
            requests.next_start_at = now + min(now - began_at, MAX_DELAY_SEC)
    finally:
        with _lock:
            requests.in_progress -= 1


def _require_capacity(actor: Actor) -> LargeRequests:
    """Return the large requests of a token or user. Raise TooManyRequests if API_LARGE_REQUESTS are in progress."""
    now = time.monotonic()
    for idle in [key for key, other in _requests_of.items() if not other.in_progress and other.next_start_at < now]:
        del _requests_of[idle]
    requests = _requests_of.setdefault(actor, LargeRequests())
    limit = conf.API_LARGE_REQUESTS
    if limit is not None and requests.in_progress >= limit:
        detail = _("This token has %d large requests in progress, its limit. Repeat this one when they have ended.")
        raise TooManyRequests(RETRY_AFTER_SEC, detail % limit)
    return requests


class BulkJsonBodyModel(JsonBodyModel):
    limit_key: ClassVar[str] = "BULK_BODY_BYTES"
    bytes_per_container: ClassVar[int] = 8 * LIST_BYTES

    @classmethod
    def get_request_data(cls, request: Any, api: Any, path_params: Any) -> dict[str, Any]:
        """Refuse a request past API_LARGE_REQUESTS before its body is read."""
        with _lock:
            _require_capacity(request.auth.actor)
        return super().get_request_data(request, api, path_params)


class BulkJsonBody(JsonBody):  # type: ignore[misc]
    """A required JSON body that may be large."""

    _model = BulkJsonBodyModel
