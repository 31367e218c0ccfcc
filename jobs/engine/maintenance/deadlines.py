"""Deadlines: a time-sensitive job that nobody has started in time is not started any more; it ends SKIPPED."""

from __future__ import annotations

import logging

from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from jobs import clock
from jobs.actors import SCHEDULER
from jobs.engine import lifecycle
from jobs.errors import JobSchedulerError
from jobs.models import Job, JobRun
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.states import Status

logger = logging.getLogger("jobs.engine.maintenance.deadlines")
PASSED = "its deadline passed before it could start"
AT_ONCE = 500
SOONEST_SEC, LATEST_SEC = 0.5, 15.0


def in_time() -> Q:
    """What a claim may take. A local job is dispatched by being started, so nothing more needs to be looked up."""
    return ~Q(time_sensitive=True, deadline_at__lte=Now(), dispatched_at__isnull=True)


def not_too_late() -> Q:
    """The same for offers: a job that was offered before may never have been started."""
    unstarted = ~Exists(JobRun.objects.filter(job_id=OuterRef("pk")))
    return ~(Q(time_sensitive=True, deadline_at__lte=Now()) & Q(unstarted))


class Keeper:
    """The housekeeping duty. It looks again when the next deadline passes."""

    def __init__(self) -> None:
        self._pause = SOONEST_SEC

    def pause_sec(self) -> float:
        return self._pause

    def skip_late(self) -> int:
        """One round. Returns how many jobs it ended."""
        until = _until_first(_waiting())
        if until > 0:
            self._pause = min(max(until, SOONEST_SEC), LATEST_SEC)
            return 0
        late = _waiting().filter(deadline_at__lte=Now(), run__isnull=True).order_by("deadline_at")
        found = list(late.values_list("pk", flat=True)[:AT_ONCE])
        upcoming = 0.0 if found else _until_first(_waiting().filter(deadline_at__gt=Now()))
        self._pause = min(max(upcoming, SOONEST_SEC), LATEST_SEC)
        skipped = 0
        for job_id in found:
            try:
                lifecycle.skip(job_id, actor=SCHEDULER, reason=PASSED)
                skipped += 1
            except JobSchedulerError as error:  # it started, or ended, since we looked
                logger.debug("job %s is not skipped: %s", job_id, error)
        return skipped


def _until_first(jobs: JobQuerySet) -> float:
    """Seconds until the first of their deadlines."""
    first = jobs.order_by("deadline_at").filter(deadline_at__isnull=False).values_list("deadline_at", flat=True).first()
    return LATEST_SEC if first is None else (first - clock.now()).total_seconds()


def _waiting() -> JobQuerySet:
    waiting = sql_literals([str(Status.PENDING), str(Status.QUEUED)])
    return Job.objects.filter(status__in=waiting, time_sensitive=True)
