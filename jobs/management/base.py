"""What all commands share: exit codes, errors as one line, durations, tables and JSON for scripts."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils.translation import gettext as _

from jobs import actors, checks, clock
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.validation import fields
from jobs.validation.sanitize import escape_unprintable

REFUSED, BAD_INPUT, INTERRUPTED = 1, 2, 130
UNITS_SEC = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LONGEST_DAYS = 36_500
MOST_ROWS = 10_000
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[smhdw])+")
_PART = re.compile(r"([0-9.]+)([smhdw])")


class CliCommand(BaseCommand):
    """A command that says what went wrong in one line and an exit code: 1 refused or not found, 2 bad input."""

    requires_system_checks = [checks.TAG]  # all of them would load every URL of the site, API included, each time

    def execute(self, *args: Any, **options: Any) -> Any:
        with told_in_one_line():
            return super().execute(*args, **options)

    def add_verbs(self, parser: CommandParser) -> Any:
        return parser.add_subparsers(dest="verb", required=True, metavar="verb")

    def add_verb(self, verbs: Any, name: str, summary: str) -> CommandParser:
        """A verb of this command. The options of all Django commands may stand behind it, too."""
        verb: CommandParser = verbs.add_parser(name, help=summary, description=summary)
        for flag in ("--settings", "--pythonpath"):
            verb.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        for flag in ("--traceback", "--no-color"):
            verb.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return verb

    def write_json(self, document: Any) -> None:
        """In ASCII: it passes through any terminal and any locale, and control characters come out spelled."""
        self.stdout.write(json.dumps(document, indent=2))

    def write_table(self, headings: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None = None) -> None:
        for line in table(headings, rows, width):
            self.stdout.write(line)


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print one JSON document instead of text.")


def add_limit(parser: CommandParser) -> None:
    parser.add_argument("--limit", default="50", help="At most so many (default %(default)s).")


def limit(given: dict[str, Any]) -> int:
    return whole_number(given["limit"], "--limit", 1, MOST_ROWS)


def add_reason(parser: CommandParser) -> None:
    parser.add_argument("--reason", default="", help="Why; kept with what is done.")


@contextmanager
def told_in_one_line() -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        raise CommandError(escape_unprintable(str(error)), returncode=BAD_INPUT) from error
    except JobSchedulerError as error:
        raise CommandError(escape_unprintable(str(error)), returncode=REFUSED) from error
    except DatabaseError as error:
        raise CommandError(_("The database refused: %s") % first_line(error), returncode=REFUSED) from error
    except KeyboardInterrupt:
        raise CommandError(_("Interrupted."), returncode=INTERRUPTED) from None
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(REFUSED) from None


def actor() -> actors.Actor:
    """Who sits at this terminal."""
    try:
        return actors.cli(getpass.getuser())
    except (KeyError, OSError):  # a container may run as a number without a name
        return actors.cli(f"uid {os.getuid()}")


def duration(text: str, field: str) -> timedelta:
    """`90s`, `15m`, `1h30m`, `30d`, `2w`."""
    if not _DURATION.fullmatch(text):
        raise InvalidInput(
            field, _("must be a duration such as 90s, 15m, 1h30m or 30d, not %r") % escape_unprintable(text)[:50]
        )
    seconds = sum(float(number) * UNITS_SEC[unit] for number, unit in _PART.findall(text))
    if not 0 < seconds <= LONGEST_DAYS * UNITS_SEC["d"]:
        raise InvalidInput(field, _("must be more than nothing and at most %d days") % LONGEST_DAYS)
    return timedelta(seconds=seconds)


def moment(text: str, field: str) -> datetime:
    """A time with its offset, or a duration from now, such as `+10m`."""
    if text.startswith("+"):
        return clock.now() + duration(text[1:], field)
    return fields.parse_time(text, field)


def whole_number(text: str, field: str, minimum: int, maximum: int) -> int:
    try:
        return fields.parse_integer(int(text), field, minimum, maximum)
    except ValueError:
        limits = {"minimum": minimum, "maximum": maximum, "text": escape_unprintable(text)[:50]}
        message = _("must be a whole number from %(minimum)d to %(maximum)d, not “%(text)s”") % limits
        raise InvalidInput(field, message) from None


def priority(text: str) -> int | str:
    """A number, or a word for the service to judge."""
    return int(text) if text.isascii() and text.isdigit() else text


def read_params(pairs: Iterable[str], document: str | None, option: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The params of a JSON document, and those that are written key=value, which win over it and have no type yet."""
    params = {} if document is None else fields.parse_json_object(fields.decode_json(document, option), option)
    written: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput([], _("params are written key=value, not “%s”") % escape_unprintable(pair)[:100])
        if name in written:
            raise InvalidInput(["params", name[:100]], _("appears twice"))
        written[name] = value
    return params, written


def names(values: Iterable[str] | None, field: str) -> list[str]:
    """What an option names that may be repeated, and may name several with commas."""
    listed = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    if values and not listed:
        raise InvalidInput(field, _("names nothing"))
    return listed


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None = None) -> list[str]:
    """Aligned columns; what does not fit into the width is cut off at the right."""
    cells = [[escape_unprintable("" if cell is None else str(cell)) for cell in row] for row in (headings, *rows)]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in cells]
    return lines if width is None else [shortened(line, width) for line in lines]


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def age(seconds: float | None) -> str:
    """The two largest units, for a person's eye."""
    if seconds is None:
        return "-"
    left = max(int(seconds), 0)
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNITS_SEC[unit])
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return escape_unprintable(lines[0]) if lines else type(error).__name__
