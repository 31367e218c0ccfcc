"""Write what handlers report while they run (progress, checkpoints, tokens, log lines) to the database.

Every write carries the lease token: a handler whose lease is lost writes nothing.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.db.models import F

from jobs import db
from jobs.conf import conf
from jobs.engine.database import Outage, short_timeouts
from jobs.engine.executors.context import Writes
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs
from jobs.models import Job, JobLog

logger = logging.getLogger("jobs.engine.scribe")
BATCH_WINDOW_SEC = 0.5  # progress and log lines of this long are written together


class ProgressWriter(threading.Thread):
    def __init__(self, running: RunningJobs) -> None:
        super().__init__(name="progress-writer", daemon=True)
        self.running = running
        self._wake = threading.Event()
        self._end = threading.Event()
        self._outage = Outage(logger, "progress and logs")

    def run(self) -> None:
        while not self._end.is_set():
            self._wake.wait()
            if not any(job.ctx.writes.urgent for job in self.running):
                self._end.wait(BATCH_WINDOW_SEC)
            self._wake.clear()
            with self._outage.survive():
                short_timeouts(conf.LEASE_SEC * 2 / 3)
                for job in self.running:
                    write_progress(job)
        db.connection().close()

    def wake(self) -> None:
        self._wake.set()

    def end(self) -> None:
        self._end.set()
        self._wake.set()


def write_progress(job: RunningJob) -> None:
    """Write what is new, if the lease is still ours; else stop the handler."""
    with job.writing:
        if job.lost or not job.ctx.writes:
            return
        writes = job.ctx.take_writes()
        try:
            is_ours = _store(job, writes)
        except Exception:
            job.ctx.give_back(writes)
            raise
        if not is_ours:
            job.mark_lost()


def _store(job: RunningJob, writes: Writes) -> bool:
    fields: dict[str, Any] = {}
    if writes.progress is not None:
        fields["progress"], fields["progress_message"] = writes.progress
    if writes.checkpoint is not None:
        fields["checkpoint"] = writes.checkpoint[0]
    if writes.tokens is not None:
        fields["tokens_used"] = writes.tokens
    with db.atomic():
        row = Job.objects.filter(pk=job.id, lease_token=job.claim.lease_token)
        # Without a field to write, the row is still touched: the lock keeps a successor from claiming meanwhile.
        if not row.update(**fields or {"tokens_used": F("tokens_used")}):
            return False
        JobLog.objects.bulk_create(
            [JobLog(job_id=job.id, level=level[:16], message=message) for level, message in writes.lines]
        )
    return True
