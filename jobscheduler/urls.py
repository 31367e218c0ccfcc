"""URLs for any site, under any prefix: `path("scheduler/", include("jobscheduler.urls"))`."""

from __future__ import annotations

from django.urls import include, path

import jobscheduler.unshadowed  # noqa: F401
from jobscheduler.api import api, legacy
from jobscheduler.health import healthz, readyz
from jobscheduler.metrics import scrape

urlpatterns = [
    path("healthz", healthz, name="jobscheduler_healthz"),
    path("readyz", readyz, name="jobscheduler_readyz"),
    path("metrics", scrape, name="jobscheduler_metrics"),
    path("api/", include((api.patterns(), "jobscheduler-api"))),
    path("", include((list(legacy.paths()), "jobscheduler-legacy"))),
]
