"""Write the reports of running handlers (progress, checkpoints, tokens, log lines) to the database."""

from __future__ import annotations

import logging
import threading

from jobs import db
from jobs.conf import conf
from jobs.db import set_short_timeouts
from jobs.engine.worker.running_jobs import RunningJobs
from jobs.outages import OutageGuard

logger = logging.getLogger("jobs.engine.worker")
BATCH_WINDOW_SEC = 0.5  # progress and log lines of such a window are written together


class ProgressWriter(threading.Thread):
    """Writes the reports of all running handlers whenever one of them wakes it."""

    def __init__(self, running: RunningJobs) -> None:
        super().__init__(name="progress-writer", daemon=True)
        self.running = running
        self._wake = threading.Event()
        self._end = threading.Event()
        self._outage = OutageGuard(logger, "progress and logs")

    def run(self) -> None:
        while not self._end.is_set():
            self._wake.wait()
            if not any(job.ctx.writes.urgent for job in self.running):
                self._end.wait(BATCH_WINDOW_SEC)
            self._wake.clear()
            with self._outage.survive():
                set_short_timeouts(conf.LEASE_SEC * 2 / 3)
                for job in self.running:
                    job.write_progress()
        db.connection().close()

    def wake(self) -> None:
        self._wake.set()

    def end(self) -> None:
        self._end.set()
        self._wake.set()
