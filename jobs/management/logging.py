"""How the commands log: one line an event, for people or as JSON. Control characters are shown, never obeyed."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache

from jobs.validation.sanitize import escape_unprintable


def configure(style: str, *, verbosity: int = 1) -> None:
    """Send our log lines to standard error in this style, once: the host's own handlers do not get them too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if style == "json" else Human())
    ours = logging.getLogger("jobs")
    ours.handlers = [handler]
    ours.propagate = False
    ours.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))


class Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_clock(int(record.created))} {record.levelname.lower():7} {escape_unprintable(record.getMessage())}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@lru_cache(maxsize=1)
def _clock(second: int) -> str:
    """Format a time by the reader's own clock, once for all lines of a second."""
    return datetime.fromtimestamp(second).strftime("%H:%M:%S")  # noqa: DTZ006


class Json(logging.Formatter):
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
