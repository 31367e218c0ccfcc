"""`manage.py schedulerinfo [--watch]`: the queue at a glance in the terminal, 80 columns wide."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db import DatabaseError
from django.utils.translation import gettext as _

from jobs import clock
from jobs.conf import conf
from jobs.engine.database import close
from jobs.engine.process_identity import Identity
from jobs.management import base
from jobs.management.output import note
from jobs.models import Target
from jobs.services import limits
from jobs.states import LIVE, Status
from jobs.stats import live_counts, queries

WIDTH, ROWS = 80, 10
REDRAW_SEC = 2.0
RESTRAINT = 4  # a huge queue takes long to count: watching it must not become the work of the database
FROM_THE_TOP = "\x1b[H\x1b[2J"


class Command(base.CliCommand):
    help = "Shows counts, running jobs, limits in use, workers and blocked lanes on one screen."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--watch", action="store_true", help="Look again every 2 s until Ctrl-C.")

    def handle(self, *args: Any, **given: Any) -> None:
        if not given["watch"]:
            self._draw(list(lines()))
            return
        try:
            while True:
                began = time.monotonic()
                try:
                    shown = list(lines())
                except DatabaseError as error:  # go on looking: it may come back
                    close()
                    shown = [_("The database cannot be asked: %s") % base.first_line(error)]
                self.stdout.write(FROM_THE_TOP if self.stdout.isatty() else "", ending="")
                self._draw([*shown, ""])
                time.sleep(max(REDRAW_SEC, RESTRAINT * (time.monotonic() - began)))
        except KeyboardInterrupt:
            return

    def _draw(self, lines: list[str]) -> None:
        for line in lines:
            is_heading = line.endswith(":") and not line.startswith(" ")
            self.stdout.write(self.style.MIGRATE_HEADING(line) if is_heading else line)
        self.stdout.flush()


def lines() -> Iterator[str]:
    """Headings end with a colon; what belongs to them is indented."""
    now, counts, oldest = clock.now(), live_counts.count_jobs().by_status(), queries.get_oldest_waiting_job()
    yield f"{_('Job scheduler')}  {now:%Y-%m-%d %H:%M:%S} UTC"
    for title, is_live in ((_("Live:"), True), (_("Ended, all time:"), False)):
        shown = [f"{status} {counts[status]}" for status in Status if (status in LIVE) == is_live]
        yield from _part(title, ["  ".join(shown)])
    if oldest is not None:
        age = base.age((now - oldest.created_at).total_seconds())
        yield from _part(_("Oldest waiting:"), [f"{oldest.pk}  {age}  {oldest.job_type}"])
    yield from _part(_("Running:"), _running(now))
    yield from _part(_("Limits in use:"), _limits())
    yield from _part(_("Workers:"), _workers(now))
    yield from _part(_("Lanes blocked:"), _blocked())


def _running(now: datetime) -> list[str]:
    rows = []
    for job in queries.running_jobs()[: ROWS + 1]:
        run, owner = getattr(job, "run", None), Identity.of_owner(job.lease_owner or "")
        elapsed = base.age(None if run is None else (now - run.started_at).total_seconds())
        holder = base.shortened(owner.name if owner else job.lease_owner or "", 20)
        rows.append((job.pk, elapsed, base.shortened(job.job_type, 20), holder, note(job)))
    return _table(("ID", "FOR", "TYPE", "WORKER", "NOTE"), rows)


def _limits() -> list[str]:
    rows = []
    for limit in limits.listing():
        used = f"{limit.in_use}/{_('unlimited') if limit.max is None else limit.max}"
        rows.append((f"{limit.scope} {limit.key}".strip(), used, _("paused") if limit.paused else ""))
    return _table(("LIMIT", "IN USE", ""), rows)


def _workers(now: datetime) -> list[str]:
    rows = []
    for worker in queries.list_workers():
        silent_sec = (now - worker.heartbeat_at).total_seconds()
        state = f"{worker.state} ({worker.stuck} stuck)" if worker.stuck else worker.state
        state = _("silent") if silent_sec > conf.LEASE_SEC else state
        busy = f"{worker.busy}/{worker.slots}"
        rows.append((base.shortened(worker.name, 32), state, busy, base.age(silent_sec), worker.host))
    return _table(("NAME", "STATE", "BUSY", "BEAT", "HOST"), rows) or [_("none is running")]


def _blocked() -> list[str]:
    rows: list[Sequence[Any]] = [
        (base.shortened(job.target or "", 24), job.status, job.pk, note(job))
        for job in queries.blocking_jobs()[: ROWS + 1]
    ]
    paused = Target.objects.filter(paused=True).order_by("tenant", "key")[: ROWS + 1]
    rows += [(base.shortened(target.key, 24), _("target paused"), target.paused_by, target.reason) for target in paused]
    return _table(("TARGET", "STATE", "BY", "REASON"), rows)


def _part(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
        yield title
        yield from (base.shortened(f"  {line}", WIDTH) for line in lines)


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = base.table(headings, rows[:ROWS]) if rows else []
    return [*lines, _("… and more")] if len(rows) > ROWS else lines
