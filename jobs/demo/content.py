"""What the demo shows: a past that a worker of this process has really run, jobs that wait, and how all of it goes.

What waits is of types that every worker knows; its low priority lets a site's own jobs go first.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import sin, tau
from typing import Any

from django.utils.translation import ngettext

from jobs import clock, db
from jobs.actors import Actor
from jobs.demo import MARK, TENANT, NotTheDemo, handlers
from jobs.engine.claim import Serves
from jobs.engine.maintenance import retention
from jobs.engine.maintenance.rollup_compaction import MINUTES_KEPT
from jobs.engine.sql.rollup import HOUR
from jobs.engine.worker import Options, Worker
from jobs.errors import Conflict
from jobs.models import ConcurrencyLimit, Job, JobGroup, JobMinute, JobTemplate, Target
from jobs.models.rollup import BUCKETS_SEC
from jobs.registry import registry
from jobs.services import groups, limits, targets, templates
from jobs.services import jobs as job_services
from jobs.states import LIVE, Status

WORKER = "demo"
GPU, PLOTTER = "demo-gpu", "demo-plotter"
BATCH = 500
LOOK_SEC = 0.5
STEP, WEEK = timedelta(minutes=5), timedelta(days=7)
# Job type, its resource, jobs an hour, how many of a hundred fail, usual wait and run in seconds.
USUAL = (
    ("demo.mail", "demo-mail", 120, 4, 0.4, 0.3),
    ("demo.report", "demo-cpu", 18, 1, 3.0, 40.0),
    ("demo.import", "demo-cpu", 6, 0, 20.0, 240.0),
    ("demo.print", "demo-printer", 30, 15, 1.5, 4.0),
)


class StillRunning(Conflict):
    code = "still_running"


def live_through(actor: Actor) -> None:
    JobMinute.objects.bulk_create(_minutes(clock.now()), batch_size=500)
    reports = [("demo.report", {"month": f"2026-{month:02d}"}) for month in range(1, 10)]
    mails = [("demo.mail", {"to": f"reader-{number}@open.example", "token": "secret"}) for number in range(12)]
    closed = [("demo.mail", {"to": f"reader-{number}@closed.example"}) for number in range(3)]
    files = [("demo.import", {"path": f"orders-{number}.csv", "rows": number % 3 * 100}) for number in range(6)]
    prints = [("demo.print", {"copies": number + 1, "burns": number == 3}) for number in range(6)]
    plain: list[dict[str, Any]] = [
        {"job_type": kind, "params": params} for kind, params in (*reports, *mails, *closed, *files, *prints)
    ]
    stuck: dict[str, Any] = {
        "job_type": "demo.mail",
        "params": {"to": "editor@closed.example"},
        "target": "demo-book-2",
    }
    job_services.enqueue_many([{**each, "tenant": TENANT, "tags": ["demo"]} for each in (*plain, stuck)], actor=actor)
    fine = [{"job_type": "demo.mail", "params": {"to": f"chapter-{number}@open.example"}} for number in range(5)]
    groups.create(fine, name="demo: five chapters", tenant=TENANT, actor=actor)
    mixed = [*fine[:3], {"job_type": "demo.mail", "params": {"to": "chapter-4@closed.example"}}]
    groups.create(mixed, name="demo: one chapter lost", on_failure="continue", tenant=TENANT, actor=actor)
    work(burst=True)


def work(*, burst: bool, housekeeping: bool = False, concurrency: int = 1) -> int:
    """Run the demo's jobs in this process; without `burst` until it is told to stop."""
    handlers.make_known()
    serves = Serves(tuple(registry.local_names()), tenant=TENANT, choosy=True)
    options = Options(None, concurrency, serves, burst=burst, housekeeping=housekeeping)
    worker = Worker(options)
    if not burst:
        worker.listen_to_signals()
        return worker.run()
    # What a worker says of each job, and of each that fails on purpose, is not news here.
    logger = logging.getLogger("jobs")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return worker.run()
    finally:
        logger.setLevel(level)


def _minutes(now: datetime) -> Iterator[JobMinute]:
    """A week of ups and downs. What is older than a day stands by the hour, as housekeeping would have folded it."""
    dice = random.Random(7)  # noqa: S311 — the same picture every time
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    folded = hour - MINUTES_KEPT
    moment = hour - WEEK
    while moment < now - STEP:
        is_folded = moment < folded
        span = timedelta(hours=1) if is_folded else STEP
        tide = 1.2 + sin(moment.timestamp() / 86_400 * tau)
        for kind, resource, hourly, failing, wait, run in USUAL:
            jobs = round(hourly * tide * (span / timedelta(hours=1)) * dice.uniform(0.6, 1.4))
            failed = sum(dice.random() * 100 < failing for _ in range(jobs))
            for outcome, number in ((Status.COMPLETED, jobs - failed), (Status.FAILED, failed)):
                if not number:
                    continue
                waited, ran = wait * dice.uniform(0.5, 4), run * dice.uniform(0.5, 2)
                yield JobMinute(
                    minute=moment,
                    worker=HOUR if is_folded else WORKER,
                    tenant=TENANT,
                    resource=resource,
                    job_type=kind,
                    outcome=str(outcome),
                    wait_bucket=_bucket(waited),
                    run_bucket=_bucket(ran),
                    jobs=number,
                    wait_sec=number * waited,
                    run_sec=number * ran,
                )
        moment += span


def _bucket(seconds: float) -> int:
    return sum(seconds > bound for bound in BUCKETS_SEC)


def arrange(actor: Actor) -> None:
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
        _nap(actor, 20, resource=GPU)
    for chapter in range(3):
        _nap(actor, 15 + chapter, target="demo-book-1")
    for _ in range(4):
        _nap(actor, 12)
    _nap(actor, 5, resource=PLOTTER)
    _nap(actor, 5, target="demo-book-2")  # behind a failed one
    _nap(actor, 5, target="demo-book-3")
    _nap(actor, 5, not_before=clock.now() + timedelta(hours=18))
    _nap(actor, 5, hold=True)
    job_services.pause(_nap(actor, 30).pk, reason="demo: not now", actor=actor)
    job_services.cancel(_nap(actor, 30).pk, reason="demo: not wanted any more", actor=actor)
    mail = {"to": "reader@open.example"}
    job_services.enqueue(
        "demo.mail", mail, tenant=TENANT, priority="LOW", tags=["demo"], actor=actor
    )  # nobody serves it


def _nap(actor: Actor, seconds: float, **fields: Any) -> Any:
    fields = {"tenant": TENANT, "priority": "LOW", "tags": ["demo"], **fields}
    return job_services.enqueue("system.sleep", {"seconds": seconds}, actor=actor, **fields)


def clear(actor: Actor, patience_sec: float) -> int:
    """First nothing more may start, then what runs must end, then everything goes."""
    for job_id in list(_jobs().filter(status__in=sorted(LIVE)).values_list("pk", flat=True)):
        try:
            job_services.cancel(job_id, reason="the demo is over", actor=actor)
        except Conflict:  # it has ended meanwhile
            continue
    deadline = time.monotonic() + patience_sec
    while running := _jobs().filter(status=Status.RUNNING).count():
        if time.monotonic() > deadline:
            message = ngettext(
                "%d job was asked to stop and still runs", "%d jobs were asked to stop and still run", running
            )
            raise StillRunning(f"{message % running}; try again.")
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
        templates.delete(template.pk, actor=actor)
    JobTemplate.objects.filter(tenant=TENANT, name=MARK).delete()
    return gone


def _jobs() -> Any:
    return Job.objects.filter(tenant=TENANT)
