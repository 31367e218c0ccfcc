"""The last failures, those together that look alike: by job type, kind of error, and the place in one's own code."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db.models import CharField, F
from django.db.models.functions import Coalesce, Right
from django.utils.translation import gettext as _

from jobs.admin.showing import first_line
from jobs.literals import literals
from jobs.models import Job
from jobs.models.job import RARE
from jobs.states import Status

LOOKED_AT, SHOWN, TAIL = 100, 10, 2000
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_THEIRS = re.compile(r"site-packages|dist-packages|/lib/python|<frozen")


@dataclass
class Alike:
    """Failures of one kind; the newest one is the sample."""

    job_type: str
    error: str
    place: str
    sample: UUID
    last_at: datetime | None
    job_ids: list[UUID] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.job_ids)


def recent() -> list[Alike]:
    """Of the last 100 failures that nobody has retried or resolved, in one statement along their own index."""
    failed = Job.objects.filter(status__in=literals(RARE), status=Status.FAILED)
    open_ones = failed.filter(resolved_at__isnull=True, retried_by__isnull=True)
    tail = Coalesce(Right("run__error", TAIL), F("status_reason"), output_field=CharField())
    rows = open_ones.order_by("-pk").values_list("pk", "job_type", "status_reason", "run__finished_at", tail)
    found: dict[tuple[str, str, str], Alike] = {}
    for pk, job_type, reason, at, text in rows[:LOOKED_AT]:
        kind = (job_type, *kind_of(text or reason))
        alike = found.setdefault(kind, Alike(*kind, pk, at))
        alike.job_ids.append(pk)
    return sorted(found.values(), key=lambda each: -each.count)[:SHOWN]


def kind_of(text: str) -> tuple[str, str]:
    """The error's class (or its first words), and the innermost frame that is not a library's."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    named = re.match(r"[\w.]+(?=:|$)", last)
    frames = [frame for frame in _FRAME.finditer(text) if not _THEIRS.search(frame["file"])]
    place = f"{frames[-1]['file'].rpartition('/')[2]}:{frames[-1]['line']}" if frames else ""
    return (named[0] if named else first_line(last, 60)) or _("no words"), place
