"""Liveness and readiness probes, without authentication: the responses contain nothing confidential."""

from __future__ import annotations

import math
from threading import Lock
from time import monotonic

from django.db import Error as DbError
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs import db
from jobs.db import non_atomic

READINESS_SEC = 1.0


# Under ATOMIC_REQUESTS a probe would need the database before it could report that it is missing.
@non_atomic
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Report that this process responds."""
    return JsonResponse({"status": "ok"})


@non_atomic
@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Report whether the database responds and has every migration."""
    missing = readiness.find_missing()
    if missing:
        return JsonResponse({"status": "unavailable", "missing": missing}, status=503)
    return JsonResponse({"status": "ok"})


class Readiness:
    """What readyz reports, looked up at most once a second: callers are not authenticated."""

    def __init__(self) -> None:
        self._missing: str | None = None
        self._expires_at = -math.inf
        self._lock = Lock()

    def find_missing(self) -> str | None:
        with self._lock:  # requests that arrive meanwhile wait for one look
            if monotonic() >= self._expires_at:
                self._missing = self._look()
                self._expires_at = monotonic() + READINESS_SEC
            return self._missing

    def forget(self) -> None:
        self._expires_at = -math.inf

    def _look(self) -> str | None:
        try:
            executor = MigrationExecutor(db.connection())
            leaves = [leaf for leaf in executor.loader.graph.leaf_nodes() if leaf[0].startswith("jobscheduler_")]
            return "migrations" if executor.migration_plan(leaves) else None
        except DbError:
            return "database"


readiness = Readiness()


class ProbesFirst(MiddlewareMixin):
    """Middleware that answers probes before ALLOWED_HOSTS is checked: orchestrators use addresses unknown to it."""

    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        view = PROBES.get(request.path_info)
        return None if view is None else view(request)


PROBES = {"/healthz": healthz, "/readyz": readyz}
