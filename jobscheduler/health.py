"""Liveness and readiness probes, without authentication: the responses contain nothing confidential."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock
from time import monotonic

from django.db import Error as DbError
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from jobs import db
from jobs.api.problems import error_response
from jobs.db import non_atomic
from jobs.errors import InvalidInput
from jobs.services import workers

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
def readyz(request: HttpRequest) -> HttpResponse:
    """Report whether the database responds and has every migration, and whether a worker runs.

    A missing worker is a failure with `worker=1` only.
    """
    values = set(request.GET.getlist("worker"))
    if values - {"1"}:
        return error_response(request, InvalidInput(["query", "worker"], _("must be 1")))
    missing = readiness.find_missing() or worker_readiness.find_missing()
    if missing and (values or missing != "worker"):
        return JsonResponse({"status": "unavailable", "missing": missing}, status=503)
    return JsonResponse({"status": "ok", "worker": "missing" if missing else "running"})


class Readiness:
    """A result of readyz, computed at most once a second: callers are not authenticated."""

    def __init__(self, compute: Callable[[], str | None]) -> None:
        self._compute = compute
        self._missing: str | None = None
        self._expires_at = -math.inf
        self._lock = Lock()

    def find_missing(self) -> str | None:
        with self._lock:  # requests that arrive meanwhile wait for the result
            if monotonic() >= self._expires_at:
                self._missing = self._compute()
                self._expires_at = monotonic() + READINESS_SEC
            return self._missing

    def forget(self) -> None:
        self._expires_at = -math.inf


def _find_missing_schema() -> str | None:
    try:
        executor = MigrationExecutor(db.connection())
        leaves = [leaf for leaf in executor.loader.graph.leaf_nodes() if leaf[0].startswith("jobscheduler_")]
        return "migrations" if executor.migration_plan(leaves) else None
    except DbError:
        return "database"


def _find_missing_worker() -> str | None:
    try:
        return None if workers.has_running_worker() else "worker"
    except DbError:
        return "database"


readiness = Readiness(_find_missing_schema)
worker_readiness = Readiness(_find_missing_worker)


class ProbesFirst(MiddlewareMixin):
    """Middleware that answers probes before ALLOWED_HOSTS is checked: orchestrators use addresses unknown to it."""

    def process_request(self, request: HttpRequest) -> HttpResponseBase | None:
        view = PROBES.get(request.path_info)
        return None if view is None else view(request)


PROBES = {"/healthz": healthz, "/readyz": readyz}
