"""Demo data for the console, in a tenant of its own; `manage.py demo` creates and removes it.

The apps `schedules` and `webhooks`, if installed, add their part: a module `demo` with `prepare`, `finish` and `clear`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.apps import apps
from django.utils.translation import gettext as _

from jobs.actors import Actor
from jobs.errors import Conflict, NotFound
from jobs.models import Job, JobTemplate
from jobs.services import templates

TENANT = "demo"
MARKER_TEMPLATE = "demo: a short nap"  # it shows that the tenant holds the demo
MAX_OTHER_JOBS = 100  # of other tenants, for a site that is only being tried
APP_LABELS = ("jobscheduler_schedules", "jobscheduler_webhooks")


class DemoExists(Conflict):
    code = "demo_is_there"


class DemoTenantInUse(Conflict):
    code = "not_the_demo"


def fill(*, actor: Actor) -> int:
    """Create the demo, and run its recent jobs. Return the number of jobs."""
    from jobs.demo import content, handlers, history

    if exists():
        raise DemoExists(_("The demo already exists; “demo --clear” removes it."))
    if Job.objects.filter(tenant=TENANT).exists():
        raise DemoTenantInUse(_("The tenant “%s” already has other jobs; the demo needs an empty tenant.") % TENANT)
    handlers.register_handlers()
    template = {
        "name": MARKER_TEMPLATE,
        "job_type": "system.sleep",
        "params": {"seconds": 5},
        "priority": "LOW",
        "tags": ["demo"],
    }
    templates.create(template, tenant=TENANT, actor=actor)
    history.create_past_week(actor)  # before there are endpoints that would get its events
    for module in _load_app_modules():
        module.prepare(actor)
    content.create_recent_jobs(actor)
    for module in _load_app_modules():
        module.finish(actor)
    content.create_waiting_jobs(actor)
    return Job.objects.filter(tenant=TENANT).count()


def clear(*, actor: Actor, timeout_sec: float) -> int:
    """Remove the demo, and everything else in its tenant. Return the number of removed jobs."""
    from jobs.demo import content

    if not exists():
        raise NotFound(_("There is no demo to remove."))
    for module in _load_app_modules():
        module.clear(actor)
    return content.clear(actor, timeout_sec)


def is_site_in_use() -> bool:
    """Return whether other tenants have so many jobs that this may be a production site."""
    others = Job.objects.exclude(tenant=TENANT).order_by("-pk").values("pk")[: MAX_OTHER_JOBS + 1]
    return others.count() > MAX_OTHER_JOBS


def exists() -> bool:
    return JobTemplate.objects.filter(tenant=TENANT, name=MARKER_TEMPLATE).exists()


def _load_app_modules() -> list[Any]:
    configs = [config for config in apps.get_app_configs() if config.label in APP_LABELS]
    return [import_module(f"{config.name}.demo") for config in configs]
