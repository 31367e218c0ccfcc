"""What any site includes, under any prefix: `path("scheduler/", include("jobscheduler.urls"))`."""

from __future__ import annotations

from django.urls import path

from jobscheduler.health import healthz, readyz

urlpatterns = [
    path("healthz", healthz, name="jobscheduler_healthz"),
    path("readyz", readyz, name="jobscheduler_readyz"),
]
