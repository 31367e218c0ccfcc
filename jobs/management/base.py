"""The base class of our commands: exit codes, errors in one line, parsing of options, tables and JSON."""

from __future__ import annotations

import argparse
import json
import logging
import os
import pwd
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
MAX_ROWS = 10_000
WORKER_NAME_HELP = "The name of the worker; default <hostname>-<n>, the lowest n that no live worker has."
_END_LOGGER = logging.getLogger("jobs.engine.transitions")


class CliCommand(BaseCommand):
    """A command that reports an error in one line and an exit code: 1 refused or not found, 2 bad input."""

    requires_system_checks = [checks.TAG]  # all checks would import the site's URLs and the API at every start

    def execute(self, *args: Any, **options: Any) -> Any:
        level = _END_LOGGER.level
        _END_LOGGER.setLevel(logging.WARNING)  # a command reports the ends that it causes itself
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
        finally:
            _END_LOGGER.setLevel(level)

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


def parse_moment(text: str, field: str) -> datetime:
    """Parse a time with its UTC offset, or a duration from now, such as `+10m`."""
    moment = fields.parse_time_or_delay(text, field)
    return clock.now() + moment if isinstance(moment, timedelta) else moment


def parse_whole_number(text: str, field: str, minimum: int, maximum: int) -> int:
    try:
        return fields.parse_integer(int(text), field, minimum, maximum)
    except ValueError:
        limits = {"minimum": minimum, "maximum": maximum, "text": escape_unprintable(text)[:50]}
        message = _("must be a whole number from %(minimum)d to %(maximum)d, not “%(text)s”") % limits
        raise InvalidInput(field, message) from None


def parse_number(text: str, field: str) -> float:
    try:
        return fields.parse_number(float(text), field)
    except ValueError:
        message = _("must be a number, not “%s”") % escape_unprintable(text)[:50]
        raise InvalidInput(field, message) from None


RECYCLING_OPTIONS = {"max_jobs": ("--max-jobs", 1_000_000_000), "max_rss": ("--max-rss", 1_000_000)}


def add_recycling_options(parser: CommandParser) -> None:
    """Add the options after which a worker ends when its running jobs have finished."""
    jobs = "Take no more than N jobs, let them finish and exit with 0, so that a supervisor starts a fresh worker."
    parser.add_argument("--max-jobs", metavar="N", help=jobs)
    rss = "The same once its process has used more than so many MiB of memory."
    parser.add_argument("--max-rss", metavar="MIB", help=rss)


def parse_recycling_options(options: dict[str, Any]) -> dict[str, int | None]:
    """Return the values of `add_recycling_options` as arguments of WorkerOptions."""
    values = {
        name: None if options[name] is None else parse_whole_number(options[name], option, 1, maximum)
        for name, (option, maximum) in RECYCLING_OPTIONS.items()
    }
    return {"max_jobs": values["max_jobs"], "max_rss_mib": values["max_rss"]}


def parse_worker_name(name: str | None) -> str | None:
    """Return the value of --name. The owner of a lease contains it, with @, : and # as separators."""
    if name is not None and set(fields.parse_text(name, "--name", max_length=100, single_line=True)) & set("@#:"):
        raise InvalidInput("--name", "must not contain @, # or :")
    return name


def get_option(name: str) -> str:
    """Return an option as it is entered, by the name of its value."""
    return f"--{name.replace('_', '-')}"


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
        count, left = divmod(left, fields.UNITS_SEC[unit])
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def first_line(error: object) -> str:
    lines = str(error).strip().splitlines()
    return escape_unprintable(lines[0]) if lines else type(error).__name__
