"""`manage.py schedulerinfo [--watch]`: the queue at a glance in the terminal, 80 columns wide."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db import DatabaseError
from django.utils.translation import gettext as _

from jobs import census, cli, clock, figures, limits
from jobs.conf import conf
from jobs.engine.connections import close
from jobs.engine.identity import Identity
from jobs.management.describing import note
from jobs.models import Job, Target, Worker
from jobs.states import LIVE, Status

WIDTH, ROWS = 80, 10
REDRAW_SEC = 2.0
RESTRAINT = 4  # a huge queue takes long to count: watching it must not become the work of the database
FROM_THE_TOP = "\x1b[H\x1b[2J"


class Command(cli.CliCommand):
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
                self._redraw()
                time.sleep(max(REDRAW_SEC, RESTRAINT * (time.monotonic() - began)))
        except KeyboardInterrupt:
            return

    def _redraw(self) -> None:
        try:
            shown = list(lines())
        except DatabaseError as error:  # go on looking: it may come back
            close()
            shown = [_("The database cannot be asked: %s") % cli.first_line(error)]
        self.stdout.write(FROM_THE_TOP if self.stdout.isatty() else "", ending="")
        self._draw([*shown, ""])

    def _draw(self, lines: list[str]) -> None:
        for line in lines:
            is_heading = line.endswith(":") and not line.startswith(" ")
            self.stdout.write(self.style.MIGRATE_HEADING(line) if is_heading else line)
        self.stdout.flush()


def lines() -> Iterator[str]:
    """Headings end with a colon; what belongs to them is indented."""
    now = clock.now()
    yield f"{_('Job scheduler')}  {now:%Y-%m-%d %H:%M:%S} UTC"
    yield from _counts(census.take().statuses())
    yield from _oldest(now)
    yield from _part(_("Running:"), _running(now))
    yield from _part(_("Limits in use:"), _limits())
    yield from _part(_("Workers:"), _workers(now))
    yield from _part(_("Lanes blocked:"), _blocked())


def _counts(counts: dict[str, int]) -> Iterator[str]:
    for title, wanted in ((_("Live:"), True), (_("Ended, all time:"), False)):
        shown = [f"{status} {counts[status]}" for status in Status if (status in LIVE) == wanted]
        yield from _part(title, ["  ".join(shown)])


def _oldest(now: datetime) -> Iterator[str]:
    oldest = figures.oldest_waiting()
    if oldest is not None:
        age = cli.age((now - oldest.created_at).total_seconds())
        yield from _part(_("Oldest waiting:"), [f"{oldest.pk}  {age}  {oldest.job_type}"])


def _running(now: datetime) -> list[str]:
    jobs = list(figures.running()[: ROWS + 1])
    rows = [(job.pk, _elapsed(job, now), cli.shortened(job.job_type, 20), _holder(job), note(job)) for job in jobs]
    return _table(("ID", "FOR", "TYPE", "WORKER", "NOTE"), rows)


def _limits() -> list[str]:
    rows = [
        (
            f"{each.scope} {each.key}".strip(),
            f"{each.in_use}/{_('unlimited') if each.max is None else each.max}",
            _("paused") if each.paused else "",
        )
        for each in limits.listing()
    ]
    return _table(("LIMIT", "IN USE", ""), rows)


def _workers(now: datetime) -> list[str]:
    rows = []
    for worker in figures.workers():
        heard = cli.age((now - worker.heartbeat_at).total_seconds())
        busy = f"{worker.busy}/{worker.slots}"
        rows.append((cli.shortened(worker.name, 32), _state(worker, now), busy, heard, worker.host))
    return _table(("NAME", "STATE", "BUSY", "BEAT", "HOST"), rows) or [_("none is running")]


def _blocked() -> list[str]:
    rows: list[Sequence[Any]] = [
        (cli.shortened(job.target or "", 24), job.status, job.pk, note(job)) for job in figures.blocking()[: ROWS + 1]
    ]
    paused = Target.objects.filter(paused=True).order_by("tenant", "key")
    rows += [
        (cli.shortened(each.key, 24), _("target paused"), each.paused_by, each.reason) for each in paused[: ROWS + 1]
    ]
    return _table(("TARGET", "STATE", "BY", "REASON"), rows)


def _part(title: str, shown: Iterable[str]) -> Iterator[str]:
    listed = list(shown)
    if listed:
        yield ""
        yield title
        yield from (cli.shortened(f"  {line}", WIDTH) for line in listed)


def _table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    shown = cli.table(headings, rows[:ROWS]) if rows else []
    return [*shown, _("… and more")] if len(rows) > ROWS else shown


def _elapsed(job: Job, now: datetime) -> str:
    run = getattr(job, "run", None)
    return cli.age(None if run is None else (now - run.started_at).total_seconds())


def _holder(job: Job) -> str:
    owner = Identity.of_owner(job.lease_owner or "")
    return cli.shortened(owner.name if owner else job.lease_owner or "", 20)


def _state(worker: Worker, now: datetime) -> str:
    if (now - worker.heartbeat_at).total_seconds() > conf.LEASE_SEC:
        return _("silent")
    return f"{worker.state} ({worker.stuck} stuck)" if worker.stuck else worker.state
