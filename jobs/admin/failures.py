"""Unhandled failures, grouped by job type, kind of error and the innermost line outside of libraries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Left, Right
from django.utils.translation import gettext as _

from jobs.admin.filters import find_ended_jobs
from jobs.admin.formatting import first_line
from jobs.models import Job, JobEvent
from jobs.models.expressions import is_one_of
from jobs.models.job import JobQuerySet
from jobs.models.run import RARE_END_KINDS
from jobs.payload_visibility import get_public_reason, summarize_traceback
from jobs.states import EventKind, Status
from jobs.stats import queries

FAILURES_SHOWN, FAILURES_READ = 10, 100
FAILURES_SCANNED = 1000  # events
ERROR_TAIL = 2000  # characters of a traceback's end
ERROR_HEAD = 8000  # characters of its beginning, up to the first exception
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python|<frozen")


class Failure(NamedTuple):
    """A failed job, its kind of error, and the innermost line outside of libraries."""

    job_id: UUID
    job_type: str
    at: datetime | None
    error: str
    location: str


@dataclass
class FailureGroup:
    """Failures of one job type with the same error at the same line; the sample is the newest one."""

    job_type: str
    error: str
    location: str
    sample: UUID
    last_at: datetime | None
    job_ids: list[UUID] = field(default_factory=list)


@dataclass
class FailureGroups:
    """The groups with the most jobs, and how many unhandled failures were read."""

    groups: list[FailureGroup]
    job_ids: list[UUID]
    is_complete: bool  # whether no limit of the query was reached


def find_unhandled(since: datetime) -> JobQuerySet:
    """Return the jobs that failed since a time and were neither retried nor resolved: of many, the newest."""
    return Job.objects.filter(queries.unhandled_failures(), pk__in=find_ended_jobs(since, None, [Status.FAILED]))


def group_failures(since: datetime, failed: int, *, with_texts: bool) -> FailureGroups:
    """Group the failures since a time that were neither retried nor resolved, in one statement.

    They are found by the latest FAILURES_SCANNED events of failed jobs, along their own index, so that the number of
    older failures does not matter; `failed` is how many jobs failed since then, handled ones too. Without texts,
    nothing that a handler wrote is part of a group.
    """
    events = JobEvent.objects.filter(is_one_of("kind", RARE_END_KINDS), kind=EventKind.FAILED, at__gte=since)
    latest = events.order_by("-at").values("job_id")[:FAILURES_SCANNED]
    unhandled = Job.objects.filter(
        pk__in=latest, status=Status.FAILED, resolved_at__isnull=True, retried_by__isnull=True
    )
    failures = read_failures(unhandled, FAILURES_READ + 1, with_texts=with_texts)
    is_complete = len(failures) <= FAILURES_READ and failed <= FAILURES_SCANNED
    failures = failures[:FAILURES_READ]
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    for failure in failures:
        key = (failure.job_type, failure.error, failure.location)
        groups.setdefault(key, FailureGroup(*key, failure.job_id, failure.at)).job_ids.append(failure.job_id)
    shown = sorted(groups.values(), key=lambda group: -len(group.job_ids))[:FAILURES_SHOWN]
    return FailureGroups(shown, [failure.job_id for failure in failures], is_complete)


def read_failures(failed: QuerySet[Job], limit: int, *, with_texts: bool) -> list[Failure]:
    """Return the newest of these failed jobs. Without texts, nothing that a handler wrote is read out."""
    columns = ("pk", "job_type", "status", "status_reason", "remote", "dispatched_at", "run__finished_at")
    text = Right("run__error", ERROR_TAIL) if with_texts else Left("run__error", ERROR_HEAD)
    rows = failed.order_by("-pk").annotate(text=text).values_list(*columns, "text", named=True)[:limit]
    failures = []
    for job in rows:
        cause = parse_error(job.text or job.status_reason) if with_texts else hide_error(job)
        failures.append(Failure(job.pk, job.job_type, job.run__finished_at, *cause))
    return failures


def hide_error(job: Any) -> tuple[str, str]:
    """Return the class and the place of an exception, or the reason of the scheduler itself."""
    error_class, place = ("", "") if job.remote else summarize_traceback(job.text or "")
    return error_class or get_public_reason(job) or _("no message"), place


def parse_error(text: str) -> tuple[str, str]:
    """Return the error's class (or the start of its last line), and the innermost frame outside of libraries."""
    lines = [line for line in text.splitlines() if line.strip()]
    last_line = lines[-1] if lines else ""
    error_class = re.match(r"[\w.]+(?=:|$)", last_line)
    frames = [frame for frame in _FRAME.finditer(text) if not _LIBRARY.search(frame["file"])]
    location = f"{frames[-1]['file'].rpartition('/')[2]}:{frames[-1]['line']}" if frames else ""
    return (error_class[0] if error_class else first_line(last_line, 60)) or _("no message"), location


def shorten_error(error: str) -> str:
    """Return the class of an error without its module; a text as it is."""
    is_class = re.fullmatch(r"[\w.]*\.\w+", error) is not None
    return error.rpartition(".")[2] if is_class else error


def find_own_frame(text: str) -> str:
    """Return three lines of a traceback: the innermost frame outside of libraries, its code, and the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    own = [n for n, line in enumerate(lines) if (frame := _FRAME.match(line)) and not _LIBRARY.search(frame["file"])]
    if not own:
        return ""
    has_code = lines[own[-1] + 1 : own[-1] + 2] and lines[own[-1] + 1].startswith("    ")
    shown = lines[own[-1] : own[-1] + (2 if has_code else 1)]
    return "\n".join(line[:300] for line in (*shown, *(lines[-1:] if lines[-1] not in shown else ())))
