"""Bound the large requests that one token (or user) has in progress in a web process: bulk, groups and their actions.

Each takes seconds of the process and, on SQLite, of its write lock. Several of one token at once would make the
requests of all others wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from django.utils.translation import gettext as _

from jobs.actors import Actor
from jobs.api.auth import Principal
from jobs.api.problems import TooManyRequests
from jobs.conf import conf

RETRY_AFTER_SEC = 1.0

_in_progress: Counter[Actor] = Counter()
_lock = Lock()


@contextmanager
def large_request(principal: Principal) -> Iterator[None]:
    """Count a large request while it is in progress; raise TooManyRequests past API_LARGE_REQUESTS of its caller."""
    actor = principal.actor
    limit = conf.API_LARGE_REQUESTS
    with _lock:
        if limit is not None and _in_progress[actor] >= limit:
            detail = _("This token has %d large requests in progress, its limit. Repeat this one when they have ended.")
            raise TooManyRequests(RETRY_AFTER_SEC, detail % limit)
        _in_progress[actor] += 1
    try:
        yield
    finally:
        with _lock:
            _in_progress[actor] -= 1
            if not _in_progress[actor]:
                del _in_progress[actor]
