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
LONGEST_REST_SEC = 5.0


class Caller:
    """A token or user with large requests in this process."""

    requests = 0  # in progress
    rests_until = 0.0  # on the monotonic clock


_callers: dict[Actor, Caller] = {}
_lock = Lock()


@contextmanager
def large_request(principal: Principal) -> Iterator[None]:
    """Count a large request while it is in progress; raise TooManyRequests past API_LARGE_REQUESTS of its caller.

    On SQLite the caller's next one begins only after a rest as long as this one took.
    """
    with _lock:
        caller = _require_turn(principal.actor)
        caller.requests += 1
    try:
        time.sleep(max(caller.rests_until - time.monotonic(), 0.0))
        began_at = time.monotonic()
        yield
        if db.is_sqlite():
            now = time.monotonic()
            caller.rests_until = now + min(now - began_at, LONGEST_REST_SEC)
    finally:
        with _lock:
            caller.requests -= 1


def _require_turn(actor: Actor) -> Caller:
    """Return the caller. Raise TooManyRequests if it has API_LARGE_REQUESTS in progress."""
    now = time.monotonic()
    for idle in [key for key, caller in _callers.items() if not caller.requests and caller.rests_until < now]:
        del _callers[idle]
    caller = _callers.setdefault(actor, Caller())
    limit = conf.API_LARGE_REQUESTS
    if limit is not None and caller.requests >= limit:
        detail = _("This token has %d large requests in progress, its limit. Repeat this one when they have ended.")
        raise TooManyRequests(RETRY_AFTER_SEC, detail % limit)
    return caller


class BulkJsonBodyModel(JsonBodyModel):
    limit_key: ClassVar[str] = "BULK_BODY_BYTES"
    bytes_per_container: ClassVar[int] = 8 * LIST_BYTES

    @classmethod
    def get_request_data(cls, request: Any, api: Any, path_params: Any) -> dict[str, Any]:
        """Refuse another large request of a busy caller before its body is read."""
        with _lock:
            _require_turn(request.auth.actor)
        return super().get_request_data(request, api, path_params)


class BulkJsonBody(JsonBody):  # type: ignore[misc]
    """A required JSON body that may be large."""

    _model = BulkJsonBodyModel
