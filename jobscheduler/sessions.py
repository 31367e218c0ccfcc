"""Sessions of the standalone site end some time after the log-in, and earlier if no page is asked for."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY, get_user
from django.contrib.auth.models import AnonymousUser
from django.contrib.auth.signals import user_logged_in
from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import SimpleLazyObject

STARTED, ACTIVE = "jobscheduler_started", "jobscheduler_active"  # keys of a session: seconds since the epoch
WRITE_SEC = 60  # activity is recorded at most so often
REFRESH_HEADER = "X-Jobs-Live"  # of pages that refresh themselves, which is no activity of their user


def start_session(*, request: HttpRequest | None, **kwargs: Any) -> None:
    """Record the time of a log-in."""
    if request is not None:
        request.session[STARTED] = request.session[ACTIVE] = int(time.time())


class SessionLimits(MiddlewareMixin):
    """Middleware that logs users out SESSION_COOKIE_AGE s after their log-in or SESSION_IDLE_AGE s without activity.

    Like the user, the session is looked at where a view asks for the user: a database that is away is the view's error.
    """

    def process_request(self, request: HttpRequest) -> None:
        request.user = SimpleLazyObject(lambda: get_limited_user(request))  # type: ignore[assignment]  # as Django's own middleware


def get_limited_user(request: HttpRequest) -> Any:
    """Return the user of the session, or AnonymousUser after the end of the session. Record activity."""
    now, session = int(time.time()), request.session
    if SESSION_KEY not in session:
        return AnonymousUser()
    started, active = session.get(STARTED), session.get(ACTIVE)
    if started is None or active is None:  # a log-in without our signal
        session[STARTED] = session[ACTIVE] = now
    elif now - started > settings.SESSION_COOKIE_AGE or now - active > settings.SESSION_IDLE_AGE:
        session.flush()
        return AnonymousUser()
    elif now - active >= WRITE_SEC and REFRESH_HEADER not in request.headers:
        session[ACTIVE] = now
    return get_user(request)


user_logged_in.connect(start_session, dispatch_uid="jobscheduler.sessions")
