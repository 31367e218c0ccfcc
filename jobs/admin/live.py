"""Pages that keep themselves fresh: the browser asks for the page again, and is told in one small query that nothing
happened. What changes a page is its `mark`; the clock's minute belongs to it, since ages are shown too."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from django.db.models import Max
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified

from jobs.models import JobEvent

ASKING = "X-Jobs-Live"  # says that a page is asked for by its own script


def latest_event() -> str:
    """The number of the last thing that happened to any job."""
    return str(JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0)


def etag(request: HttpRequest, mark: str) -> str:
    """Of this page as this user sees it now; never a hash of its content, which would have to be made first."""
    parts = (mark, str(int(time.time()) // 60), str(request.user.pk), request.get_full_path())
    return f'W/"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"'


def is_unchanged(request: HttpRequest, mark: str) -> bool:
    """Only for our own script: a person who reloads a page gets it, with the messages that wait for it."""
    return ASKING in request.headers and request.headers.get("If-None-Match") == etag(request, mark)


def not_modified(request: HttpRequest, mark: str) -> HttpResponse:
    response = HttpResponseNotModified()
    response["ETag"] = etag(request, mark)
    return response


def context(request: HttpRequest, mark: str) -> dict[str, Any]:
    """What the page needs to know to ask for itself."""
    if not mark:
        return {}
    unread = {"messages": ()} if ASKING in request.headers else {}  # they wait for a page that a person sees
    return {"live_url": request.get_full_path(), "live_etag": etag(request, mark), **unread}


def stamped(response: HttpResponse, request: HttpRequest, mark: str) -> HttpResponse:
    if mark and ASKING in request.headers:
        response["ETag"] = etag(request, mark)
    return response
