"""Formatters for log lines that a text cannot imitate, and the log of a worker, whose lines name it and their jobs.

Messages and exceptions may quote input of any kind. Unprintable characters, line breaks among them, are escaped in
messages; each line of a traceback begins with a mark that no log line has.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from jobs.validation.sanitize import escape_unprintable

TRACEBACK_MARK = "  | "


class SafeFormatter(logging.Formatter):
    """A formatter of the logging module, with its own format string. Messages of a worker begin with its name."""

    worker = ""  # the worker that this process is, or whose handler it runs: set by `name_worker` for all formatters

    def get_message(self, record: logging.LogRecord) -> str:
        return f"[{self.worker}] {record.getMessage()}" if self.worker else record.getMessage()

    def format(self, record: logging.LogRecord) -> str:
        record.message = self.get_message(record)
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
        message = escape_unprintable(self.get_message(record))
        line = f"{_format_time(int(record.created))} {record.levelname.lower():7} {message}"
        return line + self.format_details(record) if record.exc_info or record.stack_info else line


class JsonFormatter(SafeFormatter):
    """One JSON object a line, with the fields `worker`, `job_id` and `job_type`; JSON escapes every line break."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self.worker:
            line["worker"] = self.worker
        for name in JOB_FIELDS:
            if name in record.__dict__:
                line[name] = record.__dict__[name]
        if record.exc_info:
            line["exception"] = self.read_traceback(record)
        return json.dumps(line, ensure_ascii=True, default=str)


JOB_FIELDS = ("job_id", "job_type", "jobs")


def job_fields(job_id: UUID, job_type: str) -> dict[str, Any]:
    """Return the fields of a log record about one job, for its `extra`."""
    return {"job_id": str(job_id), "job_type": job_type}


def batch_fields(jobs: Iterable[tuple[UUID, str]]) -> dict[str, Any]:
    """Return the field of a log record about several jobs, given by id and type."""
    return {"jobs": [job_fields(*job) for job in jobs]}


def name_worker(name: str) -> None:
    """Name this worker in all lines that our formatters write in this process from now on."""
    SafeFormatter.worker = name


@dataclass(frozen=True)
class WorkerLog:
    """The style and the level of a worker's log; the processes of its handlers have the same."""

    style: str
    level: int

    def install(self) -> None:
        """Write our own records to standard error, not to the site's handlers.

        As JSON, other records are written in the same style where the site uses `SafeFormatter` for them.
        """
        formatter = JsonFormatter() if self.style == "json" else TextFormatter()
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter)
        logger = logging.getLogger("jobs")
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(self.level)
        for other in logging.getLogger().handlers if self.style == "json" else ():
            if type(other.formatter) is SafeFormatter:
                other.setFormatter(formatter)


@lru_cache(maxsize=1)
def _format_time(second: int) -> str:
    """Format a time in the local time zone, once for all lines of a second."""
    return datetime.fromtimestamp(second).strftime("%H:%M:%S")  # noqa: DTZ006 — the local time of the terminal
