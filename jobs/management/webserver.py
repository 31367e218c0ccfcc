"""The web half of `runscheduler`: the site's own WSGI application on a socket that is already listening."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from types import FrameType

from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.servers.basehttp import get_internal_wsgi_application

log = logging.getLogger("jobs.web")


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def serve(descriptor: int, *, threads: int) -> None:
    """Serves until SIGTERM; requests under way get a few seconds to end."""
    import waitress

    signal.signal(signal.SIGTERM, _leave)
    application = get_internal_wsgi_application()
    if settings.DEBUG and "django.contrib.staticfiles" in settings.INSTALLED_APPS:
        application = StaticFilesHandler(application)
    if not settings.DEBUG and not getattr(staticfiles_storage, "is_collected", True):
        log.warning("Static files are served as they lie in the apps: `manage.py collectstatic` makes pages quicker.")
    waitress.serve(
        application,
        sockets=[socket.socket(fileno=descriptor)],
        threads=threads,
        # Which proxy headers to believe is the site's decision (SECURE_PROXY_SSL_HEADER), as under any other server.
        clear_untrusted_proxy_headers=False,
    )


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(0)
