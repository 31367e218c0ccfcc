"""A dry run: what a verb would do to some jobs, told by their states and without touching any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin.verbs import Verb, status_word
from jobs.models import Gate, Job
from jobs.states import TERMINAL, Status, StopMode, arrow

AT_ONCE = 500
SAMPLE = 10
TOLD = (
    *("job_type", "status", "hold", "cancel_requested", "cancel_mode", "resolved_at", "target", "created_at"),
    *("retried_by__status", "retried_by__gate", "retried_by__not_before", "group_id", "dispatched_at"),
)


@dataclass
class Forecast:
    """Of how many jobs the verb will take, and why it will leave the others."""

    verb: Verb
    jobs: int = 0
    taken: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    sample: list[Job] = field(default_factory=list)
    left: int = 0

    def __str__(self) -> str:
        count = ngettext("%d job", "%d jobs", self.jobs) % self.jobs
        parts = [str(self.verb.will % {"count": self.taken})]
        parts += [_("%(count)d skipped because %(why)s") % {"count": n, "why": why} for why, n in self.told()]
        return f"{count}: {', '.join(parts)}."

    def told(self) -> list[tuple[str, int]]:
        return self.skipped.most_common()


def forecast(verb: Verb, job_ids: Sequence[UUID]) -> Forecast:
    found = Forecast(verb)
    for start in range(0, len(job_ids), AT_ONCE):
        some = job_ids[start : start + AT_ONCE]
        rows = Job.objects.filter(pk__in=some).select_related("retried_by").only("pk", *TOLD)
        for job in rows.order_by("pk"):
            _count(found, job)
    return found


def _count(found: Forecast, job: Job) -> None:
    found.jobs += 1
    if len(found.sample) < SAMPLE:
        found.sample.append(job)
    why = refusal(found.verb.name, job)
    if why:
        found.skipped[why] += 1
    else:
        found.taken += 1


def refusal(verb: str, job: Job) -> str:
    """Why the verb would leave this job alone, as far as its row tells; empty if it would not."""
    status, follower = Status(job.status), getattr(job, "retried_by", None)
    if verb == "change_priority":
        is_free = status in (Status.PENDING, Status.QUEUED, Status.PAUSED) and job.dispatched_at is None
        return "" if is_free else _("already started")
    if arrow(verb, status) is None:
        still = status in (Status.PENDING, Status.QUEUED)
        return (_("still %s") if still else _("already %s")) % status_word(status)
    if follower is not None and (verb == "resume" or (verb == "retry" and not _gives_way(follower))):
        return _("already followed by a job that is %s") % status_word(follower.status)
    if verb == "resolve" and (job.resolved_at is not None or follower is not None):
        return _("no unresolved failure")
    if verb == "release" and job.group_id is not None and not job.hold:
        return _("still waiting for its turn in its group")
    if verb == "pause" and job.cancel_mode == StopMode.CANCEL:
        return _("already asked to cancel")
    return ""


def _gives_way(follower: Job) -> bool:
    """It has ended, or it waits out its backoff and is sent off at once."""
    return follower.status in TERMINAL or (follower.gate == Gate.TIME and follower.not_before is not None)
