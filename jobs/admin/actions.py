"""The verbs of persons on jobs: one service call per job, an honest word on each of them, and a dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy, pgettext_lazy

from jobs import services
from jobs.actors import Actor
from jobs.admin.base import CAP, CappedInt, capped_count
from jobs.engine.facts import COLUMNS, facts_of_many
from jobs.errors import JobSchedulerError
from jobs.models import Job
from jobs.refusal_text import short_error, short_reason
from jobs.states import DryRun, JobFacts, Status, allowed_actions, is_repeated

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

FEW = 5
AT_ONCE = 500
SAMPLE = 10
SHOWN = ("job_type", "target", "created_at")


@dataclass(frozen=True)
class Verb:
    name: str
    button: StrPromise
    action: StrPromise
    will: Any
    done: Any
    call: Callable[..., Job]

    def dry_run(self) -> DryRun:
        return DryRun("update", ["priority"]) if self.name == PRIORITY.name else DryRun(self.name)


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "release",
            pgettext_lazy("verb", "Release"),
            gettext_lazy("Release selected held jobs"),
            ngettext_lazy("%(count)d will be released", "%(count)d will be released", "count"),
            ngettext_lazy("%(count)d job released", "%(count)d jobs released", "count"),
            services.release,
        ),
        Verb(
            "pause",
            pgettext_lazy("verb", "Pause"),
            gettext_lazy("Pause selected jobs"),
            ngettext_lazy("%(count)d will be paused", "%(count)d will be paused", "count"),
            ngettext_lazy("%(count)d job paused", "%(count)d jobs paused", "count"),
            services.pause,
        ),
        Verb(
            "resume",
            pgettext_lazy("verb", "Resume"),
            gettext_lazy("Resume selected jobs"),
            ngettext_lazy("%(count)d will be resumed", "%(count)d will be resumed", "count"),
            ngettext_lazy("%(count)d job resumed", "%(count)d jobs resumed", "count"),
            services.resume,
        ),
        Verb(
            "retry",
            pgettext_lazy("verb", "Retry"),
            gettext_lazy("Retry selected jobs"),
            ngettext_lazy("%(count)d will be retried", "%(count)d will be retried", "count"),
            ngettext_lazy("%(count)d job retried", "%(count)d jobs retried", "count"),
            services.retry,
        ),
        Verb(
            "resolve",
            pgettext_lazy("verb", "Resolve"),
            gettext_lazy("Resolve selected failed jobs"),
            ngettext_lazy("%(count)d will be resolved", "%(count)d will be resolved", "count"),
            ngettext_lazy("%(count)d job resolved", "%(count)d jobs resolved", "count"),
            services.resolve,
        ),
        Verb(
            "cancel",
            pgettext_lazy("verb", "Cancel"),
            gettext_lazy("Cancel selected jobs"),
            ngettext_lazy("%(count)d will be cancelled", "%(count)d will be cancelled", "count"),
            ngettext_lazy("%(count)d job cancelled", "%(count)d jobs cancelled", "count"),
            services.cancel,
        ),
    )
}


PRIORITY = Verb(
    "change_priority",
    gettext_lazy("Change priority"),
    gettext_lazy("Change priority of selected jobs"),
    ngettext_lazy("%(count)d will be changed", "%(count)d will be changed", "count"),
    ngettext_lazy("%(count)d job changed", "%(count)d jobs changed", "count"),
    services.update,  # with the number that is asked for
)


@dataclass
class Tally:
    """What became of the jobs that a verb was tried on."""

    verb: Verb
    done: list[UUID] = field(default_factory=list)
    asked: list[UUID] = field(default_factory=list)
    skipped: dict[str, list[UUID]] = field(default_factory=dict)
    left: int = 0
    made: list[Job] = field(default_factory=list)

    @property
    def changed(self) -> list[UUID]:
        return [*self.done, *self.asked]

    @property
    def is_clean(self) -> bool:
        return not self.skipped and not self.left

    def count(self, job_id: UUID, job: Job) -> None:
        """`job` is what the service answered: the same job, or the one that now follows it."""
        waits = self.verb.name in ("cancel", "pause") and job.status == Status.RUNNING
        (self.asked if waits else self.done).append(job_id)
        if job.pk != job_id:
            self.made.append(job)

    def __str__(self) -> str:
        parts = [str(self.verb.done % {"count": len(self.done)})] if self.done or not self.asked else []
        if asked := len(self.asked):
            if self.verb.name == "pause":
                told_of = ngettext("%(count)d asked to pause", "%(count)d asked to pause", asked)
            else:
                told_of = ngettext("%(count)d asked to stop", "%(count)d asked to stop", asked)
            parts.append(told_of % {"count": asked})
        told = list(self.skipped.items())[:FEW]
        parts += [_skipped(why, job_ids) for why, job_ids in told]
        if silent := sum(map(len, self.skipped.values())) - sum(len(job_ids) for _why, job_ids in told):
            parts.append(ngettext("%d more skipped", "%d more skipped", silent) % silent)
        if self.left:
            parts.append(_("%s not looked at: narrow the list to reach them") % self.left)
        return ", ".join(parts) + "."


def carry_out(job_ids: Iterable[UUID], *, actor: Actor, reason: str, tally: Tally) -> None:
    """Each job in its own transaction, so that one that cannot does not undo the others."""
    for job_id in job_ids:
        try:
            tally.count(job_id, tally.verb.call(job_id, actor=actor, reason=reason))
        except JobSchedulerError as error:
            tally.skipped.setdefault(short_error(error), []).append(job_id)


def chosen(queryset: QuerySet[Job], limit: int) -> tuple[list[Job], int]:
    """The first `limit` jobs, oldest first and fixed before anything is done to them, and how many were left."""
    keys = queryset.order_by("pk").values_list("pk", "job_type")[:limit]
    jobs = [Job(id=pk, job_type=job_type) for pk, job_type in keys]
    if len(jobs) < limit:
        return jobs, 0
    found = capped_count(queryset, limit + CAP)
    return jobs, CappedInt(CAP) if isinstance(found, CappedInt) else found - limit


def offered(facts: JobFacts) -> list[Verb]:
    """The verbs that change something about a job now."""
    names = [name for name in allowed_actions(facts) if not is_repeated(name, facts)]
    return [verb for name, verb in VERBS.items() if name in names]


def _skipped(why: str, job_ids: list[UUID]) -> str:
    count = len(job_ids)
    text = ngettext("%(count)d skipped: %(why)s", "%(count)d skipped: %(why)s", count) % {"count": count, "why": why}
    return f"{text} ({', '.join(map(str, job_ids))})" if count <= FEW else text


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
        parts += [
            _("%(count)d skipped because %(why)s") % {"count": n, "why": why} for why, n in self.skipped.most_common()
        ]
        return f"{count}: {', '.join(parts)}."


def forecast(verb: Verb, job_ids: Sequence[UUID]) -> Forecast:
    found, dry_run = Forecast(verb), verb.dry_run()
    for start in range(0, len(job_ids), AT_ONCE):
        some = job_ids[start : start + AT_ONCE]
        jobs = list(Job.objects.filter(pk__in=some).only("pk", *SHOWN, *COLUMNS).order_by("pk"))
        facts = facts_of_many(jobs)
        for job in jobs:
            found.jobs += 1
            if len(found.sample) < SAMPLE:
                found.sample.append(job)
            refused = dry_run.refusal(facts[job.pk])
            if refused is None:
                found.taken += 1
            else:
                found.skipped[short_reason(refused)] += 1
    return found
