"""`manage.py enqueue TYPE key=value…`: submit a job and print its id; `--wait` waits until it has finished."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs.management import base
from jobs.models import Job
from jobs.outages import OutageGuard
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services import results
from jobs.services.job_spec import JobFields
from jobs.states import Status
from jobs.stats import queries
from jobs.validation import fields as validation
from jobs.validation.retry_policy import merge_retry_options
from jobs.validation.sanitize import escape_unprintable

logger = logging.getLogger("jobs.waiting")
CHECK_WORKERS_SEC = 3.0  # a job that is queued for so long may have no worker
MAX_EXIT_CODE = 255
PLAIN_FIELDS = ("target", "tenant", "resource", "idempotency_key", "unique_key", "unique_until", "on_conflict")


class Command(base.CliCommand):
    help = "Submit a job and print its id. Values of key=value are converted by the signature of the handler."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        # Allow params and options in any order.
        parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job_type", metavar="TYPE")
        params = "Params, converted to the types that the handler declares."
        parser.add_argument("pairs", nargs="*", default=[], metavar="key=value", help=params)
        parser.add_argument("--json", metavar="OBJECT", help="Params as a JSON object; key=value takes precedence.")
        parser.add_argument("--priority", help="0 to 100, LOW, NORMAL, HIGH or URGENT.")
        parser.add_argument("--target", help="Jobs of the same target run one at a time.")
        parser.add_argument("--at", metavar="TIME", help="Earliest start: 2030-01-31T12:00:00Z, or +10m from now.")
        deadline = "Skip the job if it has not started by then: a time, or +2h from now."
        parser.add_argument("--deadline", metavar="TIME", help=deadline)
        parser.add_argument("--tenant")
        parser.add_argument("--resource")
        parser.add_argument("--tag", action="append", help="May be repeated.")
        parser.add_argument("--max-retries", metavar="N")
        delay = "Delay of the first retry, e.g. 30s. This option and the next ones apply to this job only."
        parser.add_argument("--retry-delay", metavar="DURATION", help=delay)
        backoff = "Multiply the delay by this after each retry, 1 or more."
        parser.add_argument("--retry-backoff", metavar="FACTOR", help=backoff)
        parser.add_argument("--retry-max-delay", metavar="DURATION", help="Longest delay of a retry, e.g. 1h.")
        jitter = "Lengthen each delay at random by up to this share, 0 to 1."
        parser.add_argument("--retry-jitter", metavar="SHARE", help=jitter)
        parser.add_argument("--max-runtime", metavar="DURATION", help="Stop the job after this time, e.g. 10m.")
        again = "Submitting the same key again returns the existing job."
        parser.add_argument("--idempotency-key", metavar="KEY", help=again)
        waiting = "No second job while one with this key waits; print the id of that one."
        parser.add_argument("--unique-key", metavar="KEY", help=waiting)
        until = "With --unique-key: also while that one runs (end). Default: start."
        parser.add_argument("--unique-until", metavar="start|end", help=until)
        conflict = "With --unique-key: give the waiting job these params and this start time (replace)."
        parser.add_argument("--on-conflict", metavar="return|replace", help=conflict)
        parser.add_argument("--hold", action="store_true", help="Hold the job until it is released.")
        wait = "Wait until the job has finished; exit with its exit code."
        parser.add_argument("--wait", action="store_true", help=wait)
        base.add_reason_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        params, pairs = base.read_params(options["pairs"], options["json"], "--json")
        handler = registry.get(validation.parse_identifier(options["job_type"], "job_type"))
        params |= handler.signature.coerce_text(pairs)
        fields = {"job_type": options["job_type"], "params": params, **_parse_fields(options)}
        job, _created = job_services.submit(fields, actor=base.current_actor(), reason=options["reason"] or "")
        progress = Progress(self.stderr)
        try:  # the caller knows the id from here on, and Ctrl-C must not say less
            self.stdout.write(str(job.pk))
            self.stdout.flush()
            if not options["wait"]:
                return
            job = wait_until_finished(job.pk, progress.show)
        except KeyboardInterrupt:
            progress.close()
            message = _("Stopped waiting; job %s continues.") % job.pk
            raise CommandError(message, returncode=base.INTERRUPTED) from None
        progress.close()
        exit_code = get_exit_code(job)
        if exit_code:
            reason = (job.status_reason.splitlines() or [""])[0]
            message = _("Job %(id)s is %(status)s") % {"id": job.pk, "status": job.status}
            message = f"{message}: {reason}" if reason else f"{message}."
            raise CommandError(escape_unprintable(message), returncode=exit_code)


def _parse_fields(options: dict[str, Any]) -> JobFields:
    fields: dict[str, Any] = {name: options[name] for name in PLAIN_FIELDS}
    fields |= {"hold": options["hold"] or None, "tags": options["tag"]}
    if options["priority"] is not None:
        fields["priority"] = base.parse_priority(options["priority"])
    if options["max_retries"] is not None:
        fields["max_retries"] = base.parse_whole_number(options["max_retries"], "--max-retries", 0, 1000)
    for name in ("retry_delay", "retry_max_delay"):
        if options[name] is not None:
            fields[name] = validation.parse_duration(options[name], base.get_option(name)).total_seconds()
    for name in ("retry_backoff", "retry_jitter"):
        if options[name] is not None:
            fields[name] = base.parse_number(options[name], base.get_option(name))
    if options["max_runtime"] is not None:
        fields["max_runtime_sec"] = validation.parse_duration(options["max_runtime"], "--max-runtime").total_seconds()
    for option, name in (("at", "not_before"), ("deadline", "deadline_at")):
        if options[option] is not None:
            fields[name] = validation.parse_time_or_delay(options[option], f"--{option}")
    return JobFields(**merge_retry_options(fields))  # type: ignore[typeddict-item]


def wait_until_finished(job_id: UUID, show: Callable[[Job], None]) -> Job:
    """Return the latest attempt of the retry chain once it has ended; show it meanwhile."""
    outage = OutageGuard(logger, "waiting")

    def show_latest_attempt() -> None:
        with outage.survive():
            show(results.result(job_id).job)

    job = results.follow(job_id, show_latest_attempt).job
    show(job)
    return job


def get_exit_code(job: Job) -> int:
    """Return the exit code that the command passes to the shell for a finished job."""
    if job.status == Status.CANCELLED:
        return base.INTERRUPTED
    if job.status != Status.FAILED:
        return 0
    run = getattr(job, "run", None)
    return max(1, min(run.exit_code or 1, MAX_EXIT_CODE)) if run is not None else 1


class Progress:
    """A bar that is redrawn on a terminal; elsewhere a line for each change."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.started = time.monotonic()
        self.is_tty = bool(out.isatty())
        self._last_state: tuple[object, ...] = ()
        self._has_checked_workers = False

    def show(self, job: Job) -> None:
        state = (job.pk, job.status, None if job.progress is None else int(job.progress * 10))
        if self.is_tty:
            width = shutil.get_terminal_size().columns - 1
            self.out.write("\r" + base.shorten(format_bar(job, self.elapsed), width) + "\x1b[K", ending="")
            self.out.flush()
        elif state != self._last_state:
            self._last_state = state
            self.out.write(format_line(job))
        if job.status == Status.QUEUED and not self._has_checked_workers and self.elapsed > CHECK_WORKERS_SEC:
            self._has_checked_workers = True
            if not queries.list_workers():
                self.close()
                self.out.write(_("No worker is running; the job waits for one."))

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def close(self) -> None:
        """Leave the bar on the terminal and continue below it."""
        if self.is_tty:
            self.out.write("")


def format_bar(job: Job, elapsed: float, cells: int = 20) -> str:
    full = int((job.progress or 0.0) * cells) if job.status != Status.COMPLETED else cells
    return f"[{'#' * full}{'-' * (cells - full)}] {format_line(job)} {base.format_age(elapsed)}"


def format_line(job: Job) -> str:
    percent = "" if job.progress is None else f" {job.progress:.0%}"
    attempt = _(" (attempt %d)") % job.attempt if job.attempt > 1 else ""
    return f"{job.status}{attempt}{percent} {escape_unprintable(job.progress_message)}".rstrip()
