"""The log format of the commands: one line for each record, as text or JSON, with control characters escaped."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache

from jobs.validation.sanitize import escape_unprintable


def configure(style: str, *, verbosity: int = 1) -> None:
    """Send our log lines to standard error in this style, and not to the site's own handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logger = logging.getLogger("jobs")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = escape_unprintable(record.getMessage())
        line = f"{_format_time(int(record.created))} {record.levelname.lower():7} {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@lru_cache(maxsize=1)
def _format_time(second: int) -> str:
    """Format a time in the local time zone, once for all lines of a second."""
    return datetime.fromtimestamp(second).strftime("%H:%M:%S")  # noqa: DTZ006


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)
