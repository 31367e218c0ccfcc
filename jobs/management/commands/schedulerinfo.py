"""`manage.py schedulerinfo [--watch]`: show the state of the queue on one screen, 80 columns wide."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db import DatabaseError
from django.utils.translation import gettext as _

from jobs import clock
from jobs.management import base
from jobs.management.output import summarize_state
from jobs.models import Target
from jobs.models.worker import heartbeat_timeout
from jobs.outages import close_connection
from jobs.process_identity import ProcessIdentity
from jobs.services import limits
from jobs.states import LIVE, Status
from jobs.stats import live_counts, queries

WIDTH, ROWS = 80, 10
REDRAW_SEC = 2.0
PAUSE_FACTOR = 4  # of the time that the queries took, so that watching a huge queue does not load the database
CLEAR_SCREEN = "\x1b[H\x1b[2J"


class Command(base.CliCommand):
    help = "Show counts, running jobs, limits in use, workers and blocked targets on one screen."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--watch", action="store_true", help="Refresh every 2 s until Ctrl-C.")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["watch"]:
            self._draw(list(build_lines()))
            return
        try:
            while True:
                started = time.monotonic()
                try:
                    lines = list(build_lines())
                except DatabaseError as error:  # continue: the database may come back
                    close_connection()
                    lines = [_("The database cannot be reached: %s") % base.first_line(error)]
                self.stdout.write(CLEAR_SCREEN if self.stdout.isatty() else "", ending="")
                self._draw([*lines, ""])
                time.sleep(max(REDRAW_SEC, PAUSE_FACTOR * (time.monotonic() - started)))
        except KeyboardInterrupt:
            return

    def _draw(self, lines: list[str]) -> None:
        for line in lines:
            is_heading = line.endswith(":") and not line.startswith(" ")
            self.stdout.write(self.style.MIGRATE_HEADING(line) if is_heading else line)
        self.stdout.flush()


def build_lines() -> Iterator[str]:
    """Yield the lines of the screen. Headings end with a colon, the lines below them are indented."""
    now, counts, oldest = clock.now(), live_counts.count_jobs().by_status(), queries.get_oldest_waiting_job()
    yield f"{_('Job scheduler')}  {now:%Y-%m-%d %H:%M:%S} UTC"
    for title, is_live in ((_("Live:"), True), (_("Finished, all time:"), False)):
        parts = [f"{status} {counts[status]}" for status in Status if (status in LIVE) == is_live]
        yield from _build_section(title, ["  ".join(parts)])
    if oldest is not None:
        age = base.format_age((now - oldest.created_at).total_seconds())
        yield from _build_section(_("Oldest waiting:"), [f"{oldest.pk}  {age}  {oldest.job_type}"])
    yield from _build_section(_("Running:"), _list_running(now))
    yield from _build_section(_("Limits in use:"), _list_limits())
    yield from _build_section(_("Workers:"), _list_workers(now))
    yield from _build_section(_("Blocked targets:"), _list_blocked())


def _list_running(now: datetime) -> list[str]:
    rows = []
    for job in queries.running_jobs()[: ROWS + 1]:
        run, owner = getattr(job, "run", None), ProcessIdentity.parse_owner(job.lease_owner or "")
        elapsed = base.format_age(None if run is None else (now - run.started_at).total_seconds())
        worker = base.shorten(owner.name if owner else job.lease_owner or "", 20)
        rows.append((job.pk, elapsed, base.shorten(job.job_type, 20), worker, summarize_state(job)))
    return _format_table(("ID", "FOR", "TYPE", "WORKER", "NOTE"), rows)


def _list_limits() -> list[str]:
    rows = []
    for limit in limits.list_limits():
        used = f"{limit.in_use}/{_('unlimited') if limit.max is None else limit.max}"
        rows.append((f"{limit.scope} {limit.key}".strip(), used, _("paused") if limit.paused else ""))
    return _format_table(("LIMIT", "IN USE", ""), rows)


def _list_workers(now: datetime) -> list[str]:
    rows = []
    for worker in queries.list_workers():
        silent_sec = (now - worker.heartbeat_at).total_seconds()
        state = f"{worker.state} ({worker.stuck} stuck)" if worker.stuck else worker.state
        state = _("silent") if silent_sec > heartbeat_timeout().total_seconds() else state
        busy = f"{worker.busy}/{worker.slots}"
        rows.append((base.shorten(worker.name, 32), state, busy, base.format_age(silent_sec), worker.host))
    return _format_table(("NAME", "STATE", "BUSY", "BEAT", "HOST"), rows) or [_("none is running")]


def _list_blocked() -> list[str]:
    rows: list[Sequence[Any]] = [
        (base.shorten(job.target or "", 24), job.status, job.pk, summarize_state(job))
        for job in queries.blocking_jobs()[: ROWS + 1]
    ]
    paused = Target.objects.filter(paused=True).order_by("tenant", "key")[: ROWS + 1]
    rows += [(base.shorten(target.key, 24), _("target paused"), target.paused_by, target.reason) for target in paused]
    return _format_table(("TARGET", "STATE", "BY", "REASON"), rows)


def _build_section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (base.shorten(f"  {line}", WIDTH) for line in lines)


def _format_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = base.format_table(headings, rows[:ROWS]) if rows else []
    return [*lines, _("… and more")] if len(rows) > ROWS else lines
