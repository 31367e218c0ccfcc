"""Skip time-sensitive jobs whose deadline has passed before they started."""

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
from jobs.states import DEADLINE_PASSED_REASON, Status

logger = logging.getLogger("jobs.engine.maintenance.deadlines")
BATCH_SIZE = 500
SHORTEST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.5, 15.0


def can_be_claimed() -> Q:
    """Return the condition for claims. Dispatch and start of a local job are one, so that no run is looked up."""
    return ~Q(time_sensitive=True, deadline_at__lte=Now(), dispatched_at__isnull=True)


def can_be_offered() -> Q:
    """Return the condition for offers: a job that was offered before may never have been started."""
    unstarted = ~Exists(JobRun.objects.filter(job_id=OuterRef("pk")))
    return ~(Q(time_sensitive=True, deadline_at__lte=Now()) & Q(unstarted))


class DeadlineCheck:
    """The maintenance task. It runs again when the next deadline passes."""

    def __init__(self) -> None:
        self._pause = SHORTEST_PAUSE_SEC

    def pause_sec(self) -> float:
        return self._pause

    def skip_late_jobs(self) -> int:
        """Skip jobs whose deadline has passed. Return how many."""
        seconds = _seconds_to_first(_waiting_jobs())
        if seconds > 0:
            self._pause = min(max(seconds, SHORTEST_PAUSE_SEC), LONGEST_PAUSE_SEC)
            return 0
        late = _waiting_jobs().filter(deadline_at__lte=Now(), run__isnull=True).order_by("deadline_at")
        job_ids = list(late.values_list("pk", flat=True)[:BATCH_SIZE])
        seconds = 0.0 if job_ids else _seconds_to_first(_waiting_jobs().filter(deadline_at__gt=Now()))
        self._pause = min(max(seconds, SHORTEST_PAUSE_SEC), LONGEST_PAUSE_SEC)
        skipped = 0
        for job_id in job_ids:
            try:
                lifecycle.skip(job_id, actor=SCHEDULER, reason=DEADLINE_PASSED_REASON)
                skipped += 1
            except JobSchedulerError as error:  # it started or finished since the query
                logger.debug("job %s is not skipped: %s", job_id, error)
        return skipped


def _seconds_to_first(jobs: JobQuerySet) -> float:
    """Return the seconds until the first deadline of these jobs."""
    first = jobs.order_by("deadline_at").filter(deadline_at__isnull=False).values_list("deadline_at", flat=True).first()
    return LONGEST_PAUSE_SEC if first is None else (first - clock.now()).total_seconds()


def _waiting_jobs() -> JobQuerySet:
    waiting = sql_literals([str(Status.PENDING), str(Status.QUEUED)])
    return Job.objects.filter(status__in=waiting, time_sensitive=True)
