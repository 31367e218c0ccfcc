"""A dry run: what a verb would do to some jobs, told without touching any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin.verbs import Verb
from jobs.engine.facts import COLUMNS, facts_of_many
from jobs.models import Job
from jobs.refusal_text import short_reason
from jobs.states import Refusal

AT_ONCE = 500
SAMPLE = 10
SHOWN = ("job_type", "target", "created_at")


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
    found, dry_run = Forecast(verb), verb.dry_run()
    for start in range(0, len(job_ids), AT_ONCE):
        some = job_ids[start : start + AT_ONCE]
        jobs = list(Job.objects.filter(pk__in=some).only("pk", *SHOWN, *COLUMNS).order_by("pk"))
        facts = facts_of_many(jobs)
        for job in jobs:
            _count(found, job, dry_run.refusal(facts[job.pk]))
    return found


def _count(found: Forecast, job: Job, refused: Refusal | None) -> None:
    found.jobs += 1
    if len(found.sample) < SAMPLE:
        found.sample.append(job)
    if refused is None:
        found.taken += 1
    else:
        found.skipped[short_reason(refused)] += 1
