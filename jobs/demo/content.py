"""The content of the demo: recent jobs that a worker in this process has run, waiting jobs, and their removal.

The types of the recent jobs, some of which fail, are handled by a process after `register_handlers`. Waiting jobs are
of types that every worker handles, but for one; their low priority lets the site's own jobs go first.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from django.utils.translation import ngettext

from jobs import clock, db
from jobs.actors import Actor
from jobs.demo import MARKER_TEMPLATE, TENANT, DemoTenantInUse
from jobs.demo.handlers import register_handlers, send_fax
from jobs.errors import Conflict
from jobs.models import ConcurrencyLimit, Job, JobGroup, JobMinute, JobTemplate, Target
from jobs.registry import job, registry
from jobs.services import groups, limits, maintenance, targets, templates, workers
from jobs.services import jobs as job_services
from jobs.services.workers import ServedJobs, WorkerOptions
from jobs.states import LIVE, Status

UNHANDLED_TYPE = "demo.fax"
GPU, PLOTTER = "demo-gpu", "demo-plotter"
BATCH_SIZE = 500
POLL_SEC = 0.5


class StillRunning(Conflict):
    code = "still_running"


def create_recent_jobs(actor: Actor) -> None:
    """Submit jobs and groups, and run them in this process."""
    reports = [("demo.report", {"month": f"2026-{month:02d}"}) for month in range(1, 10)]
    mails = [("demo.mail", {"to": f"reader-{number}@open.example", "token": "secret"}) for number in range(12)]
    closed = [("demo.mail", {"to": f"reader-{number}@closed.example"}) for number in range(3)]
    files = [("demo.import", {"path": f"orders-{number}.csv", "rows": number % 3 * 100}) for number in range(6)]
    prints = [("demo.print", {"copies": number + 1, "burns": number == 3}) for number in range(6)]
    plain: list[dict[str, Any]] = [
        {"job_type": job_type, "params": params} for job_type, params in (*reports, *mails, *closed, *files, *prints)
    ]
    blocking: dict[str, Any] = {
        "job_type": "demo.mail",
        "params": {"to": "editor@closed.example"},
        "target": "demo-book-2",
    }
    specs = [{**spec, "tenant": TENANT, "tags": ["demo"]} for spec in (*plain, blocking)]
    job_services.enqueue_many(specs, actor=actor)
    completing = [{"job_type": "demo.mail", "params": {"to": f"chapter-{number}@open.example"}} for number in range(5)]
    groups.create(completing, name="demo: five chapters", tenant=TENANT, actor=actor)
    mixed = [*completing[:3], {"job_type": "demo.mail", "params": {"to": "chapter-4@closed.example"}}]
    groups.create(mixed, name="demo: one chapter lost", on_failure="continue", tenant=TENANT, actor=actor)
    run_worker(burst=True)


def run_worker(*, burst: bool, maintenance: bool = False, concurrency: int = 1) -> int:
    """Run the demo's jobs in this process; without `burst` until a signal stops it."""
    register_handlers()
    serves = ServedJobs(tuple(registry.local_names()), tenant=TENANT, skip_unserved=True)
    options = WorkerOptions(None, concurrency, serves, burst=burst, maintenance=maintenance)
    if not burst:
        return workers.run_worker(options)
    # Some of these jobs fail on purpose: the worker's log lines would be misleading.
    worker_logger = logging.getLogger("jobs")
    level = worker_logger.level
    worker_logger.setLevel(logging.CRITICAL)
    try:
        return workers.run_worker(options, handle_signals=False)
    finally:
        worker_logger.setLevel(level)


def create_waiting_jobs(actor: Actor) -> None:
    """Submit a job for each reason to wait, and some that any worker will run."""
    limits.set_maximum("resource", GPU, maximum=1, reason="demo: there is only one", actor=actor)
    limits.pause("resource", PLOTTER, reason="demo: out of paper", actor=actor)
    targets.pause("demo-book-3", tenant=TENANT, reason="demo: its author is on holiday", actor=actor)
    steps = [
        {"job_type": "system.sleep", "params": {"seconds": seconds}, "priority": "LOW", "tags": ["demo"]}
        for seconds in (10, 10, 5, 5)
    ]
    groups.create(steps, mode="sequential", name="demo: step by step", tenant=TENANT, actor=actor)
    for _ in range(3):
        _enqueue_sleep(actor, 20, resource=GPU)
    for chapter in range(3):
        _enqueue_sleep(actor, 15 + chapter, target="demo-book-1")
    for _ in range(4):
        _enqueue_sleep(actor, 12)
    _enqueue_sleep(actor, 5, resource=PLOTTER)
    _enqueue_sleep(actor, 5, target="demo-book-2")  # behind a failed job
    _enqueue_sleep(actor, 5, target="demo-book-3")
    _enqueue_sleep(actor, 5, not_before=clock.now() + timedelta(hours=18))
    _enqueue_sleep(actor, 5, hold=True)
    job_services.pause(_enqueue_sleep(actor, 30).pk, reason="demo: not now", actor=actor)
    job_services.cancel(_enqueue_sleep(actor, 30).pk, reason="demo: not wanted any more", actor=actor)
    if UNHANDLED_TYPE not in registry.names():
        job(UNHANDLED_TYPE, max_retries=0)(send_fax)  # in this process only: no worker handles it
    job_services.enqueue(UNHANDLED_TYPE, {}, tenant=TENANT, priority="LOW", tags=["demo"], actor=actor)


def _enqueue_sleep(actor: Actor, seconds: float, **fields: Any) -> Any:
    fields = {"tenant": TENANT, "priority": "LOW", "tags": ["demo"], **fields}
    return job_services.enqueue("system.sleep", {"seconds": seconds}, actor=actor, **fields)


def clear(actor: Actor, timeout_sec: float) -> int:
    """Cancel all jobs of the demo, wait until none is running, then delete everything. Return the number of jobs."""
    for job_id in list(_jobs().filter(status__in=sorted(LIVE)).values_list("pk", flat=True)):
        try:
            job_services.cancel(job_id, reason="the demo is over", actor=actor)
        except Conflict:  # it has finished meanwhile
            continue
    deadline = time.monotonic() + timeout_sec
    while running := _jobs().filter(status=Status.RUNNING).count():
        if time.monotonic() > deadline:
            message = ngettext(
                "%d job has a stop request and is still running",
                "%d jobs have a stop request and are still running",
                running,
            )
            raise StillRunning(f"{message % running}; try again.")
        time.sleep(POLL_SEC)
    # The newest first: a retry refers to the job that it retries.
    deleted = 0
    while job_ids := list(_jobs().order_by("-pk").values_list("pk", flat=True)[:BATCH_SIZE]):
        if _jobs().filter(pk__in=job_ids, status__in=sorted(LIVE)).exists():
            raise DemoTenantInUse(f"Jobs are still being submitted to the tenant {TENANT}; stop that, and try again.")
        with db.atomic():
            maintenance.delete_jobs(job_ids)
        deleted += len(job_ids)
    for model in (JobGroup, Target, JobMinute):
        model._base_manager.using(db.alias()).filter(tenant=TENANT).delete()
    for key in (GPU, PLOTTER):
        if ConcurrencyLimit.objects.filter(scope="resource", key=key).exists():
            limits.unpause("resource", key, actor=actor)
            limits.reset("resource", key, actor=actor)
    # The marker is deleted last, so that an interrupted removal can be repeated.
    for template in JobTemplate.objects.filter(tenant=TENANT).exclude(name=MARKER_TEMPLATE):
        templates.delete(template.pk, actor=actor)
    JobTemplate.objects.filter(tenant=TENANT, name=MARKER_TEMPLATE).delete()
    return deleted


def _jobs() -> Any:
    return Job.objects.filter(tenant=TENANT)
