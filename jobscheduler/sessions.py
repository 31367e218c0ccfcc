"""Sessions of the standalone site end some time after the log-in, and earlier if no page is asked for."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY, logout
from django.contrib.auth.signals import user_logged_in
from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin

STARTED, ACTIVE = "jobscheduler_started", "jobscheduler_active"  # keys of a session: seconds since the epoch
WRITE_SEC = 60  # activity is recorded at most so often
REFRESH_HEADER = "X-Jobs-Live"  # of pages that refresh themselves, which is no activity of their user


def start_session(*, request: HttpRequest | None, **kwargs: Any) -> None:
    """Record the time of a log-in."""
    if request is not None:
        request.session[STARTED] = request.session[ACTIVE] = int(time.time())


class SessionLimits(MiddlewareMixin):
    """Middleware that logs users out SESSION_COOKIE_AGE s after their log-in or SESSION_IDLE_AGE s without activity."""

    def process_request(self, request: HttpRequest) -> None:
        if settings.SESSION_COOKIE_NAME not in request.COOKIES or SESSION_KEY not in request.session:
            return
        now, session = int(time.time()), request.session
        started, active = session.get(STARTED), session.get(ACTIVE)
        if started is None or active is None:  # a log-in without our signal
            session[STARTED] = session[ACTIVE] = now
        elif now - started > settings.SESSION_COOKIE_AGE or now - active > settings.SESSION_IDLE_AGE:
            logout(request)
        elif now - active >= WRITE_SEC and REFRESH_HEADER not in request.headers:
            session[ACTIVE] = now


user_logged_in.connect(start_session, dispatch_uid="jobscheduler.sessions")
