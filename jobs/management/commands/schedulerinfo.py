"""`manage.py schedulerinfo [--watch]`: the queue at a glance in the terminal."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandParser
from django.db import DatabaseError
from django.utils.translation import gettext as _

from jobs import cli
from jobs.engine.connections import close
from jobs.management import glance

REDRAW_SEC = 2.0
RESTRAINT = 4  # a huge queue takes long to count: watching it must not become the work of the database
FROM_THE_TOP = "\x1b[H\x1b[2J"


class Command(cli.CliCommand):
    help = "Shows counts, running jobs, limits in use, workers and blocked lanes on one screen."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--watch", action="store_true", help="Look again every 2 s until Ctrl-C.")

    def handle(self, *args: Any, **given: Any) -> None:
        if not given["watch"]:
            self._draw(list(glance.lines()))
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
            shown = list(glance.lines())
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
