"""A living picture for the console, in a tenant of its own; `manage.py demo` fills it and takes it away.

Each of our apps that is installed adds its part: a module `demo` with `prepare`, `finish` and `clear`.
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
MARK = "demo: a short nap"  # the template by which the command knows its own tenant again
NEIGHBOURS = ("jobscheduler_schedules", "jobscheduler_webhooks")


class AlreadyThere(Conflict):
    code = "demo_is_there"


class NotTheDemo(Conflict):
    code = "not_the_demo"


def fill(*, actor: Actor) -> int:
    """Make all of it, some of it by working. Returns how many jobs there are then."""
    from jobs.demo import content, handlers

    if is_there():
        raise AlreadyThere(_("The demo is there already; “demo --clear” removes it."))
    if Job.objects.filter(tenant=TENANT).exists():
        raise NotTheDemo(_("The tenant “%s” has jobs of its own; the demo leaves it alone.") % TENANT)
    handlers.make_known()
    nap = {"name": MARK, "job_type": "system.sleep", "params": {"seconds": 5}, "priority": "LOW", "tags": ["demo"]}
    templates.create(nap, tenant=TENANT, actor=actor)
    for part in _parts():
        part.prepare(actor)
    content.live_through(actor)
    for part in _parts():
        part.finish(actor)
    content.arrange(actor)
    return Job.objects.filter(tenant=TENANT).count()


def clear(*, actor: Actor, patience_sec: float) -> int:
    """Remove all of it, and whatever else is in its tenant by now. Returns how many jobs went."""
    from jobs.demo import content

    if not is_there():
        raise NotFound(_("There is no demo to remove."))
    for part in _parts():
        part.clear(actor)
    return content.clear(actor, patience_sec)


def is_there() -> bool:
    return JobTemplate.objects.filter(tenant=TENANT, name=MARK).exists()


def _parts() -> list[Any]:
    found = [config for config in apps.get_app_configs() if config.label in NEIGHBOURS]
    return [import_module(f"{config.name}.demo") for config in found]
