"""Takes the demo away: first nothing more may start, then what runs must end, then everything goes."""

from __future__ import annotations

import time
from typing import Any

from django.utils.translation import ngettext

from jobs import db, limits, presets, services
from jobs.actors import Actor
from jobs.demo import MARK, TENANT, NotTheDemo
from jobs.demo.present import GPU, PLOTTER
from jobs.engine import retention
from jobs.errors import Conflict
from jobs.models import ConcurrencyLimit, Job, JobGroup, JobMinute, JobTemplate, Target
from jobs.states import LIVE, Status

BATCH = 500
LOOK_SEC = 0.5


class StillRunning(Conflict):
    code = "still_running"


def clear(actor: Actor, patience_sec: float) -> int:
    for job_id in list(_jobs().filter(status__in=sorted(LIVE)).values_list("pk", flat=True)):
        try:
            services.cancel(job_id, reason="the demo is over", actor=actor)
        except Conflict:  # it has ended meanwhile
            continue
    deadline = time.monotonic() + patience_sec
    while running := _jobs().filter(status=Status.RUNNING).count():
        if time.monotonic() > deadline:
            said = ngettext(
                "%d job was asked to stop and still runs", "%d jobs were asked to stop and still run", running
            )
            raise StillRunning(f"{said % running}; try again.")
        time.sleep(LOOK_SEC)
    # The newest first: a retry refers to what it retries.
    gone = 0
    while ids := list(_jobs().order_by("-pk").values_list("pk", flat=True)[:BATCH]):
        if _jobs().filter(pk__in=ids, status__in=sorted(LIVE)).exists():
            raise NotTheDemo(f"Somebody goes on submitting jobs to the tenant {TENANT}; try again.")
        with db.atomic():
            retention.delete_jobs(ids)
        gone += len(ids)
    for model in (JobGroup, Target, JobMinute):
        model._base_manager.using(db.alias()).filter(tenant=TENANT).delete()
    for key in (GPU, PLOTTER):
        if ConcurrencyLimit.objects.filter(scope="resource", key=key).exists():
            limits.unpause("resource", key, actor=actor)
            limits.reset("resource", key, actor=actor)
    # The mark goes last: what is interrupted can be begun again.
    for template in JobTemplate.objects.filter(tenant=TENANT).exclude(name=MARK):
        presets.delete(template.pk, actor=actor)
    JobTemplate.objects.filter(tenant=TENANT, name=MARK).delete()
    return gone


def _jobs() -> Any:
    return Job.objects.filter(tenant=TENANT)
