"""Skip jobs whose deadline has passed before they started."""

from __future__ import annotations

import logging
import math

from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from jobs import clock, db
from jobs.actors import SCHEDULER
from jobs.conf import conf
from jobs.engine import lifecycle
from jobs.engine.transitions import lock_job
from jobs.errors import JobSchedulerError
from jobs.models import Job, JobRun
from jobs.models.job import JobQuerySet
from jobs.notifications import Listener
from jobs.states import DEADLINE_PASSED_REASON

logger = logging.getLogger("jobs.engine.maintenance.deadlines")
BATCH_SIZE = 500
PAUSE_SEC = 1.0
CLOCK_LEEWAY_SEC = 0.05  # so that the next round is not a moment too early
IDLE_POLLS = 20  # with notifications, the longest pause in intervals of POLL_SEC


def can_be_claimed() -> Q:
    """Return the condition for claims. Dispatch and start of a local job are one, so that no run is looked up."""
    return ~Q(deadline_at__isnull=False, deadline_at__lte=Now(), dispatched_at__isnull=True)


def can_be_offered() -> Q:
    """Return the condition for offers: a job that was offered before may never have been started."""
    unstarted = ~Exists(JobRun.objects.filter(job_id=OuterRef("pk")))
    return ~(Q(deadline_at__isnull=False, deadline_at__lte=Now()) & Q(unstarted))


def is_late(job: Job) -> bool:
    """Return whether the deadline of a job has passed before the job started."""
    has_passed = job.deadline_at is not None and job.deadline_at <= clock.now()
    return has_passed and not JobRun.objects.filter(job_id=job.pk).exists()


class DeadlineCheck:
    """The maintenance task. It sleeps until the next deadline; a notification of a new one wakes it."""

    def __init__(self) -> None:
        self.next_sec = 0.0  # seconds from the last round to the next deadline; inf: none

    def pause_sec(self) -> float:
        idle_sec = conf.POLL_SEC * (IDLE_POLLS if Listener.can_listen() else 1)
        return min(max(self.next_sec + CLOCK_LEEWAY_SEC, PAUSE_SEC), idle_sec)

    def run_round(self) -> int:
        self.next_sec = 0.0  # if the query fails, it is repeated soon
        self.next_sec = _read_next_deadline_sec()
        return skip_late_jobs() if self.next_sec <= 0 else 0


def _read_next_deadline_sec() -> float:
    """Return the seconds until the next deadline of a job that waits and has not begun."""
    waiting = _waiting_with_deadline().filter(run__isnull=True).order_by("deadline_at")
    row = waiting.values_list("deadline_at", Now()).first()
    return math.inf if row is None else (row[0] - row[1]).total_seconds()


def skip_late_jobs() -> int:
    """Skip waiting jobs whose deadline has passed before they started. Return how many."""
    late = _waiting_with_deadline().filter(deadline_at__lte=Now(), run__isnull=True).order_by("deadline_at")
    skipped = 0
    for job_id in list(late.values_list("pk", flat=True)[:BATCH_SIZE]):
        try:
            with db.atomic():
                if is_late(lock_job(job_id)):  # else it was started or edited since the query
                    lifecycle.skip(job_id, actor=SCHEDULER, reason=DEADLINE_PASSED_REASON)
                    skipped += 1
        except JobSchedulerError as error:  # it has finished since the query
            logger.debug("job %s is not skipped: %s", job_id, error)
    return skipped


def _waiting_with_deadline() -> JobQuerySet:
    return Job.objects.waiting().filter(deadline_at__isnull=False)


def skip_late_offer(job: Job) -> None:
    """Take back the offer of a late job, and skip the job. The caller holds the row's lock."""
    lifecycle.withdraw(job.pk, actor=SCHEDULER, reason=DEADLINE_PASSED_REASON)
    lifecycle.skip(job.pk, actor=SCHEDULER, reason=DEADLINE_PASSED_REASON)
