"""`manage.py tick`: one round of every housekeeping duty, where no worker does it all the time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from jobs import cli
from jobs.engine import housekeeping


class Command(cli.CliCommand):
    help = "Runs one round of every housekeeping duty and prints each one's word; exit code 1 if one failed."

    def handle(self, *args: Any, **given: Any) -> None:
        with _no_tracebacks(unless=given["traceback"]):
            said = housekeeping.tick()
        failed = [name for name, word in said.items() if isinstance(word, Exception)]
        for name, word in said.items():
            told = f"{type(word).__name__}: {cli.first_line(word)}" if name in failed else word
            self.stdout.write(f"{name}: {told}")
        if failed:
            raise CommandError(_("Failed: %s.") % ", ".join(failed), returncode=cli.REFUSED)


@contextmanager
def _no_tracebacks(*, unless: bool) -> Iterator[None]:
    """The duties log where they failed; at a terminal the line that we print is enough."""

    def without(record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_info if unless else None
        return True

    housekeeping.logger.addFilter(without)
    try:
        yield
    finally:
        housekeeping.logger.removeFilter(without)
