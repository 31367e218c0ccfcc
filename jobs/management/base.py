"""The base class of our commands: exit codes, errors in one line, parsing of options, tables and JSON."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import sys
from collections.abc import Iterable, Sequence
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
MAX_DAYS = 36_500
MAX_ROWS = 10_000
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[smhdw])+")
_PART = re.compile(r"([0-9.]+)([smhdw])")


class CliCommand(BaseCommand):
    """A command that reports an error in one line and an exit code: 1 refused or not found, 2 bad input."""

    requires_system_checks = [checks.TAG]  # all checks would import the site's URLs and the API at every start

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except InvalidInput as error:
            raise CommandError(escape_unprintable(str(error)), returncode=BAD_INPUT) from error
        except JobSchedulerError as error:
            raise CommandError(escape_unprintable(str(error)), returncode=REFUSED) from error
        except DatabaseError as error:
            raise CommandError(_("Database error: %s") % first_line(error), returncode=REFUSED) from error
        except KeyboardInterrupt:
            raise CommandError(_("Interrupted."), returncode=INTERRUPTED) from None
        except BrokenPipeError:  # the reader of a pipe, such as head, has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(REFUSED) from None

    def add_subcommands(self, parser: CommandParser) -> Any:
        return parser.add_subparsers(dest="subcommand", required=True, metavar="subcommand")

    def add_subcommand(self, subcommands: Any, name: str, summary: str) -> CommandParser:
        """Add a subcommand. The options of all Django commands may follow it, too."""
        subcommand: CommandParser = subcommands.add_parser(name, help=summary, description=summary)
        for flag in ("--settings", "--pythonpath"):
            subcommand.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        for flag in ("--traceback", "--no-color"):
            subcommand.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return subcommand

    def write_json(self, document: Any) -> None:
        """Write JSON in ASCII: it is safe in any locale, and control characters are escaped."""
        self.stdout.write(json.dumps(document, indent=2))

    def write_table(self, headings: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None = None) -> None:
        for line in format_table(headings, rows, width):
            self.stdout.write(line)


def add_json_option(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="Print one JSON document instead of text.")


def add_limit_option(parser: CommandParser) -> None:
    parser.add_argument("--limit", default="50", help="Maximum number of rows (default %(default)s).")


def parse_limit(options: dict[str, Any]) -> int:
    return parse_whole_number(options["limit"], "--limit", 1, MAX_ROWS)


def add_reason_option(parser: CommandParser) -> None:
    parser.add_argument("--reason", default="", help="The reason, recorded with the change.")


def current_actor() -> actors.Actor:
    """Return the operating system's user as the actor of a command, whatever the environment says."""
    try:
        return actors.make_cli_actor(pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:  # a container may run as a number without a name
        return actors.make_cli_actor(f"uid {os.getuid()}")


def parse_duration(text: str, field: str) -> timedelta:
    """Parse a duration such as `90s`, `15m`, `1h30m`, `30d` or `2w`."""
    if not _DURATION.fullmatch(text):
        message = _("must be a duration such as 90s, 15m, 1h30m or 30d, not %r") % escape_unprintable(text)[:50]
        raise InvalidInput(field, message)
    seconds = sum(float(number) * UNITS_SEC[unit] for number, unit in _PART.findall(text))
    if not 0 < seconds <= MAX_DAYS * UNITS_SEC["d"]:
        raise InvalidInput(field, _("must be more than 0 s and at most %d days") % MAX_DAYS)
    return timedelta(seconds=seconds)


def parse_moment(text: str, field: str) -> datetime:
    """Parse a time with its UTC offset, or a duration from now, such as `+10m`."""
    if text.startswith("+"):
        return clock.now() + parse_duration(text[1:], field)
    return fields.parse_time(text, field)


def parse_whole_number(text: str, field: str, minimum: int, maximum: int) -> int:
    try:
        return fields.parse_integer(int(text), field, minimum, maximum)
    except ValueError:
        limits = {"minimum": minimum, "maximum": maximum, "text": escape_unprintable(text)[:50]}
        message = _("must be a whole number from %(minimum)d to %(maximum)d, not “%(text)s”") % limits
        raise InvalidInput(field, message) from None


def parse_priority(text: str) -> int | str:
    """Return a number, or the text for the service to validate."""
    return int(text) if text.isascii() and text.isdigit() else text


def read_params(pairs: Iterable[str], document: str | None, option: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the params of a JSON document, and those given as key=value, as text; the latter take precedence."""
    params = {} if document is None else fields.parse_json_object(fields.decode_json(document, option), option)
    pairs_by_name: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput([], _("params are written key=value, not “%s”") % escape_unprintable(pair)[:100])
        if name in pairs_by_name:
            raise InvalidInput(["params", name[:100]], _("appears twice"))
        pairs_by_name[name] = value
    return params, pairs_by_name


def parse_names(values: Iterable[str] | None, field: str) -> list[str]:
    """Return the names in an option that may be repeated, each value with one name or several with commas."""
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    if values and not names:
        raise InvalidInput(field, _("is empty"))
    return names


def format_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], width: int | None = None) -> list[str]:
    """Return lines with aligned columns, cut off at the width."""
    cells = [[escape_unprintable("" if cell is None else str(cell)) for cell in row] for row in (headings, *rows)]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in cells]
    return lines if width is None else [shorten(line, width) for line in lines]


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def format_age(seconds: float | None) -> str:
    """Format a duration with its two largest units: `1h 30m`."""
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
