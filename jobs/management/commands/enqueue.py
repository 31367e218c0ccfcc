"""`manage.py enqueue TYPE key=value…`: submits a job and prints its id, alone; `--wait` waits for its end."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs.engine.database import Outage
from jobs.engine.transitions import jobs
from jobs.errors import NotFound
from jobs.management import base
from jobs.models import Job
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services.job_spec import Fields
from jobs.states import Status
from jobs.stats import queries
from jobs.validation import fields as validation
from jobs.validation.sanitize import escape_unprintable

logger = logging.getLogger("jobs.waiting")
FIRST_LOOK_SEC, LONGEST_PAUSE_SEC = 0.05, 1.0
PATIENCE_SEC = 3.0  # how long a job waits before we look whether anybody is there to take it
LARGEST_EXIT_CODE = 255
PLAIN = ("target", "tenant", "resource", "idempotency_key")


class Command(base.CliCommand):
    help = "Submits a job and prints its id. key=value is typed by the handler's own signature."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # Params and options may stand in any order.
        parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job_type", metavar="TYPE")
        parser.add_argument(
            "pairs", nargs="*", default=[], metavar="key=value", help="Params, read as the handler declares them."
        )
        parser.add_argument("--json", metavar="OBJECT", help="Params as a JSON object; key=value wins over it.")
        parser.add_argument("--priority", help="0 to 100, LOW, NORMAL, HIGH or URGENT.")
        parser.add_argument("--target", help="The serial lane it belongs to.")
        parser.add_argument("--at", metavar="TIME", help="Not before: 2030-01-31T12:00:00Z, or +10m from now.")
        parser.add_argument("--tenant")
        parser.add_argument("--resource")
        parser.add_argument("--tag", action="append", help="May be repeated.")
        parser.add_argument("--max-retries", metavar="N")
        parser.add_argument("--max-runtime", metavar="DURATION", help="Stop it after, e.g. 10m.")
        parser.add_argument("--idempotency-key", metavar="KEY", help="The same key and params give the same job.")
        parser.add_argument("--hold", action="store_true", help="Held until it is released.")
        parser.add_argument("--wait", action="store_true", help="Wait for its end; exit with its exit code.")
        base.add_reason(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        params, written = base.read_params(given["pairs"], given["json"], "--json")
        handler = registry.get(validation.parse_identifier(given["job_type"], "job_type"))
        params |= handler.signature.coerce_text(written)
        item = {"job_type": given["job_type"], "params": params, **_fields(given)}
        job, _created = job_services.submit(item, actor=base.actor(), reason=given["reason"] or "")
        self.stdout.write(str(job.pk))
        self.stdout.flush()
        if given["wait"]:
            self._wait(job.pk)

    def _wait(self, job_id: UUID) -> None:
        progress = Progress(self.stderr)
        try:
            job = wait_for(job_id, progress.show)
        except KeyboardInterrupt:
            progress.close()
            message = _("Stopped waiting; job %s goes on without us.") % job_id
            raise CommandError(message, returncode=base.INTERRUPTED) from None
        progress.close()
        code = exit_code(job)
        if code:
            reason = (job.status_reason.splitlines() or [""])[0]
            told = _("Job %(id)s ended %(status)s") % {"id": job.pk, "status": job.status}
            raise CommandError(escape_unprintable(f"{told}: {reason}" if reason else f"{told}."), returncode=code)


def _fields(given: dict[str, Any]) -> Fields:
    fields: dict[str, Any] = {name: given[name] for name in PLAIN}
    fields |= {"hold": given["hold"] or None, "tags": given["tag"]}
    if given["priority"] is not None:
        fields["priority"] = base.priority(given["priority"])
    if given["max_retries"] is not None:
        fields["max_retries"] = base.whole_number(given["max_retries"], "--max-retries", 0, 1000)
    if given["max_runtime"] is not None:
        fields["max_runtime_sec"] = base.duration(given["max_runtime"], "--max-runtime").total_seconds()
    fields["not_before"] = None if given["at"] is None else base.moment(given["at"], "--at")
    return Fields(**fields)  # type: ignore[typeddict-item]


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
        return base.INTERRUPTED
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
        self._shown: tuple[object, ...] = ()
        self._asked_for_workers = False

    def show(self, job: Job) -> None:
        state = (job.pk, job.status, None if job.progress is None else int(job.progress * 10))
        if self.is_tty:
            width = shutil.get_terminal_size().columns - 1
            self.out.write("\r" + base.shortened(bar(job, self.elapsed), width) + "\x1b[K", ending="")
            self.out.flush()
        elif state != self._shown:
            self._shown = state
            self.out.write(line(job))
        if job.status == Status.QUEUED and not self._asked_for_workers and self.elapsed > PATIENCE_SEC:
            self._asked_for_workers = True
            if not queries.list_workers():
                self.close()
                self.out.write(_("No worker is running; the job waits for one."))

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def close(self) -> None:
        """Leave the bar where it is and go on below it."""
        if self.is_tty:
            self.out.write("")


def bar(job: Job, elapsed: float, cells: int = 20) -> str:
    full = int((job.progress or 0.0) * cells) if job.status != Status.COMPLETED else cells
    return f"[{'#' * full}{'-' * (cells - full)}] {line(job)} {base.age(elapsed)}"


def line(job: Job) -> str:
    percent = "" if job.progress is None else f" {job.progress:.0%}"
    attempt = _(" (attempt %d)") % job.attempt if job.attempt > 1 else ""
    return f"{job.status}{attempt}{percent} {escape_unprintable(job.progress_message)}".rstrip()


def _look(job_id: UUID) -> Job:
    """The job, or the one that follows its failure."""
    job = jobs().select_related("run", "retried_by").filter(pk=job_id).first()
    if job is None:
        raise NotFound(_("Job %s is no longer there.") % job_id)
    follower = getattr(job, "retried_by", None)
    return _look(follower.pk) if job.status == Status.FAILED and follower is not None else job
