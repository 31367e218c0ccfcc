"""The API instance with the routers of all apps."""

from __future__ import annotations

from jobs.api.legacy import add_deprecation_headers
from jobs.api.ninja_api import SchedulerApi
from jobs.version import __version__

DESCRIPTION = """Work that runs later, in order, once, and visibly.

A started job has exactly one run; a pause suspends that run; a retry is a new job."""

ROUTERS = (
    "jobs.api.jobs.router",
    "jobs.api.jobs.runs_router",
    "jobs.api.groups.router",
    "jobs.api.direct.router",
    "jobs.api.targets.router",
    "jobs.api.templates.router",
    "schedules.api.router",
    "webhooks.api.router",
    "jobs.api.system.router",
    "jobs.api.activity.router",
    "jobs.api.remote.router",
)

NINJA_PAGES = {"openapi_url": None, "docs_url": None}  # `SchedulerApi` serves these pages itself, under any prefix

legacy = SchedulerApi(decorator=add_deprecation_headers, urls_namespace="jobscheduler-legacy", **NINJA_PAGES)
legacy.add_router("", "jobs.api.legacy.router")

api = SchedulerApi(
    other_api=legacy,
    title="Job Scheduler",
    version=__version__,
    description=DESCRIPTION,
    urls_namespace="jobscheduler-api",
    **NINJA_PAGES,
)
for router in ROUTERS:
    api.add_router("", router)
