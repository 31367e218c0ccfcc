"""The API instance with the routers of all apps."""

from __future__ import annotations

from jobs.api.legacy import add_deprecation_headers
from jobs.api.ninja_api import SchedulerApi
from jobs.version import __version__

DESCRIPTION = """Work that runs later, in order, once, and visibly.

A started job has exactly one run; a pause suspends that run; a retry is a new job.

Descriptions name the rules that they keep (INV-001 to INV-006, DEC-001 to DEC-012, CON-001 to CON-004). All state is in
one database, SQLite or PostgreSQL, with the same rules (DEC-002)."""

CONTACT = {"name": "The maintainers of Job Scheduler"}
TAGS = {
    "jobs": "Submit, read and operate jobs.",
    "job runs": "The single execution of each started job.",
    "job groups": "Jobs that run in sequence or in parallel.",
    "direct": "Run a handler within the request, without a job.",
    "targets": "Serial queues: one job of a target runs at a time.",
    "templates": "Named presets of jobs.",
    "schedules": "Jobs at due times.",
    "webhooks": "Endpoints that receive events, and their deliveries.",
    "job types": "The handlers of this site.",
    "workers": "The processes that run jobs.",
    "stats": "Counts of jobs, workers and slots.",
    "limits": "How many jobs may run at once.",
    "activity": "Who changed what.",
    "remote workers": "The protocol of addons: submit, poll, start, heartbeat, complete.",
    "legacy": "The former paths, with the former names of a job's status. They work until LEGACY_SUNSET (CON-004).",
}

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
    servers=[{"url": "/", "description": "The server of this document; paths are complete."}],
    openapi_extra={
        "info": {"contact": CONTACT, "license": {"name": "MIT", "identifier": "MIT"}},
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
    },
    **NINJA_PAGES,
)
for router in ROUTERS:
    api.add_router("", router)
