"""Formatters for log lines that a text cannot imitate.

Messages and exceptions may quote input of any kind. Unprintable characters, line breaks among them, are escaped in
messages; each line of a traceback begins with a mark that no log line has.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from functools import lru_cache

from jobs.validation.sanitize import escape_unprintable

TRACEBACK_MARK = "  | "


class SafeFormatter(logging.Formatter):
    """A formatter of the logging module, with its own format string."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        if self.usesTime():
            record.asctime = self.formatTime(record, self.datefmt)
        return escape_unprintable(self.formatMessage(record)) + self.format_details(record)

    def format_details(self, record: logging.LogRecord) -> str:
        """Return the traceback and the stack of a record, each line on its own line behind the mark."""
        text = f"{self.read_traceback(record)}\n{record.stack_info or ''}"
        lines = [line for line in text.splitlines() if line.strip()]
        return "".join(f"\n{TRACEBACK_MARK}{escape_unprintable(line)}" for line in lines)

    def read_traceback(self, record: logging.LogRecord) -> str:
        """Return the traceback; `exc_text` goes first, since secrets are masked in it."""
        if record.exc_info and not record.exc_text:
            return self.formatException(record.exc_info)
        return record.exc_text or ""


class TextFormatter(SafeFormatter):
    """The lines of a worker in a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        message = escape_unprintable(record.getMessage())
        line = f"{_format_time(int(record.created))} {record.levelname.lower():7} {message}"
        return line + self.format_details(record) if record.exc_info or record.stack_info else line


class JsonFormatter(SafeFormatter):
    """One JSON object a line; JSON escapes every line break."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.read_traceback(record)
        return json.dumps(line, ensure_ascii=True)


@lru_cache(maxsize=1)
def _format_time(second: int) -> str:
    """Format a time in the local time zone, once for all lines of a second."""
    return datetime.fromtimestamp(second).strftime("%H:%M:%S")  # noqa: DTZ006 — the local time of the terminal
