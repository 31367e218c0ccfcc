"""Why a job is not running: the reasons as data and one sentence, its place in the queue, and when it may start.

For any job in fewer than ten statements, whatever the queue holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.explain import forecast, reasons
from jobs.explain.facts import Facts, gather
from jobs.explain.reasons import Reason
from jobs.models.job import STATUS_WORDS
from jobs.states import Status


@dataclass(frozen=True)
class Explanation:
    """`ahead`: how many jobs go first, up to `forecast.MOST`; None where the job is not in the queue."""

    summary: str
    reasons: list[Reason] = field(default_factory=list)
    ahead: int | None = None
    predicted_start_at: datetime | None = None

    def document(self) -> dict[str, Any]:
        from jobs.shapes import moment

        return {
            "summary": self.summary,
            "reasons": [reason.document() for reason in self.reasons],
            "ahead": self.ahead,
            "predicted_start_at": moment(self.predicted_start_at),
        }


def explain(job_id: UUID) -> Explanation:
    facts = gather(job_id)
    job = facts.job
    if job.status == Status.RUNNING or job.is_terminal:
        return Explanation(_("It is %s.") % STATUS_WORDS[Status(job.status)])
    found = reasons.of(facts)
    outlook = forecast.of(facts, found)
    return Explanation(_sentence(facts, found, outlook.ahead), found, outlook.ahead, outlook.start_at)


def _sentence(facts: Facts, found: list[Reason], ahead: int | None) -> str:
    if found:
        more = len(found) - 1
        rest = ngettext("(and %d more reason)", "(and %d more reasons)", more) % more if more else ""
        return f"{_('Waits')}: {found[0].message} {rest}".strip()
    if ahead:
        jobs = ngettext("%d job goes first", "%d jobs go first", ahead) % ahead
        return _("Waits for its turn: %s.") % jobs
    return _("Is next: it starts as soon as a worker has a free slot.")
