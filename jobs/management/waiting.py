"""Waiting for a job at a terminal: to the end of its retry chain, with gentle looks at the database."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import cli, figures
from jobs.engine.connections import Outage
from jobs.engine.moves import jobs
from jobs.errors import NotFound
from jobs.logs import visible
from jobs.models import Job
from jobs.states import Status

logger = logging.getLogger("jobs.waiting")
FIRST_LOOK_SEC, LONGEST_PAUSE_SEC = 0.05, 1.0
PATIENCE_SEC = 3.0  # how long a job waits before we look whether anybody is there to take it
LARGEST_EXIT_CODE = 255


def wait_for(job_id: UUID, show: Callable[[Job], None]) -> Job:
    """The last job of the chain, once it has ended. A failure that is retried is not the end."""
    outage = Outage(logger, "waiting")
    pause, seen = FIRST_LOOK_SEC, None
    while True:
        with outage.survive():
            job = _look(job_id)
            show(job)
            if job.is_terminal:
                return job
            job_id, state = job.pk, (job.pk, job.status, job.progress, job.progress_message)
            pause = FIRST_LOOK_SEC if state != seen else min(pause * 1.5, LONGEST_PAUSE_SEC)
            seen = state
        time.sleep(pause)


def exit_code(job: Job) -> int:
    """Of a job that has ended: what a shell gets to see."""
    if job.status == Status.CANCELLED:
        return cli.INTERRUPTED
    if job.status != Status.FAILED:
        return 0
    run = getattr(job, "run", None)
    return max(1, min(run.exit_code or 1, LARGEST_EXIT_CODE)) if run is not None else 1


class Progress:
    """A bar that redraws itself on a terminal; elsewhere a line whenever there is news."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.began = time.monotonic()
        self.is_tty = bool(out.isatty())
        self._said: tuple[object, ...] = ()
        self._asked_for_workers = False

    def show(self, job: Job) -> None:
        if self.is_tty:
            self._draw(job)
        else:
            self._say(job)
        if job.status == Status.QUEUED and not self._asked_for_workers and self.elapsed > PATIENCE_SEC:
            self._asked_for_workers = True
            if not figures.workers():
                self.close()
                self.out.write(_("No worker is running; the job waits for one."))

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def close(self) -> None:
        """Leave the bar where it is and go on below it."""
        if self.is_tty:
            self.out.write("")

    def _draw(self, job: Job) -> None:
        width = shutil.get_terminal_size().columns - 1
        self.out.write("\r" + cli.shortened(bar(job, self.elapsed), width) + "\x1b[K", ending="")
        self.out.flush()

    def _say(self, job: Job) -> None:
        tenth = None if job.progress is None else int(job.progress * 10)
        news = (job.pk, job.status, tenth)
        if news != self._said:
            self._said = news
            self.out.write(line(job))


def bar(job: Job, elapsed: float, cells: int = 20) -> str:
    full = int((job.progress or 0.0) * cells) if job.status != Status.COMPLETED else cells
    return f"[{'#' * full}{'-' * (cells - full)}] {line(job)} {cli.age(elapsed)}"


def line(job: Job) -> str:
    percent = "" if job.progress is None else f" {job.progress:.0%}"
    attempt = _(" (attempt %d)") % job.attempt if job.attempt > 1 else ""
    return f"{job.status}{attempt}{percent} {visible(job.progress_message)}".rstrip()


def _look(job_id: UUID) -> Job:
    """The job, or the one that follows its failure."""
    job = jobs().select_related("run", "retried_by").filter(pk=job_id).first()
    if job is None:
        raise NotFound(_("Job %s is no longer there.") % job_id)
    follower = getattr(job, "retried_by", None)
    return _look(follower.pk) if job.status == Status.FAILED and follower is not None else job
