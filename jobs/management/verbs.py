"""The verbs of persons on many jobs: one service call each, and an honest word on every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import parsing, services
from jobs.actors import Actor
from jobs.engine.facts import facts_of, facts_of_many
from jobs.engine.moves import get
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.management.selecting import Selection
from jobs.models import Job
from jobs.refusal_text import followed_by, short_error, short_reason
from jobs.states import ARROWS, DryRun, JobFacts, Refusal, Status

VERBS: dict[str, Callable[..., Job]] = {
    "cancel": services.cancel,
    "pause": services.pause,
    "resume": services.resume,
    "retry": services.retry,
    "resolve": services.resolve,
    "release": services.release,
}
# By filter these begin with less than they could: nobody means to run again what has completed.
UNLESS_SAID = {"retry": frozenset({Status.FAILED}), "resume": frozenset({Status.PAUSED})}
FEW = 5


@dataclass
class Tally:
    """What became of the jobs that a verb was tried on, or would become of them."""

    verb: str
    dry_run: bool = False
    changed: list[UUID] = field(default_factory=list)
    asked: list[UUID] = field(default_factory=list)
    made: dict[UUID, UUID] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    @property
    def has_skipped(self) -> bool:
        return bool(self.skipped)

    @property
    def has_changed(self) -> bool:
        return bool(self.changed or self.asked)

    def skip(self, job_id: UUID | str, why: str) -> None:
        self.skipped.setdefault(why, []).append(str(job_id))

    def lines(self) -> list[str]:
        done, asked = len(self.changed), len(self.asked)
        skipped = sum(map(len, self.skipped.values()))
        told = {"verb": self.verb, "done": done, "asked": asked, "skipped": skipped}
        if self.dry_run:
            first = _("%(verb)s would change %(done)d, ask %(asked)d to stop and skip %(skipped)d.") % told
        else:
            first = _("%(verb)s: %(done)d changed, %(asked)d asked to stop, %(skipped)d skipped.") % told
        return [first, *(f"  {old} → {new}" for old, new in list(self.made.items())[:FEW]), *self._reasons()]

    def document(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "dry_run": self.dry_run,
            "changed": [str(each) for each in self.changed],
            "asked": [str(each) for each in self.asked],
            "made": {str(old): str(new) for old, new in self.made.items()},
            "skipped": [{"reason": why, "ids": listed} for why, listed in self.skipped.items()],
        }

    def _reasons(self) -> Iterable[str]:
        for why, listed in self.skipped.items():
            named = f" ({', '.join(listed)})" if len(listed) <= FEW else ""
            count = ngettext("%d job skipped", "%d jobs skipped", len(listed)) % len(listed)
            yield f"  {count}: {why}{named}"


def sources(verb: str) -> frozenset[Status]:
    """The states from which a verb starts."""
    return frozenset(each.source for each in ARROWS if each.verb == verb and each.source is not None)


def by_ids(verb: str, job_ids: Iterable[str], *, dry_run: bool, reason: str, actor: Actor) -> Tally:
    tally, foreseen = Tally(verb, dry_run), DryRun(verb)
    for given in job_ids:
        try:
            if dry_run:
                facts = facts_of(get(parsing.job_id(given)))
                _foretell(tally, facts, foreseen.refusal(facts))
            else:
                _perform(tally, parsing.job_id(given), reason, actor)
        except InvalidInput:
            raise
        except JobSchedulerError as error:
            tally.skip(given, short_error(error))
    return tally


def by_filter(verb: str, selection: Selection, *, dry_run: bool, reason: str, actor: Actor) -> Tally:
    """Each job in its own transaction, so that one that cannot does not undo the others.

    Of a retry chain only the latest attempt is meant.
    """
    tally, foreseen = Tally(verb, dry_run), DryRun(verb)
    for chunk in selection.walk(_wanted(verb, selection)):
        for facts in facts_of_many(chunk).values():
            if facts.superseded_by is not None:
                tally.skip(facts.job_id, followed_by(facts.superseded_by.status))
                continue
            if dry_run:
                _foretell(tally, facts, foreseen.refusal(facts))
                continue
            try:
                _perform(tally, facts.job_id, reason, actor)
            except InvalidInput:
                raise
            except JobSchedulerError as error:
                tally.skip(facts.job_id, short_error(error))
    return tally


def _wanted(verb: str, selection: Selection) -> frozenset[Status]:
    possible = sources(verb)
    if not selection.statuses:
        return UNLESS_SAID.get(verb, possible)
    if impossible := sorted(selection.statuses - possible):
        told = {"verb": verb, "status": impossible[0]}
        raise InvalidInput("--status", _("nobody can %(verb)s a job that is %(status)s") % told)
    return selection.statuses


def _foretell(tally: Tally, facts: JobFacts, refused: Refusal | None) -> None:
    if refused is not None:
        tally.skip(facts.job_id, short_reason(refused))
    elif tally.verb in ("cancel", "pause") and facts.status == Status.RUNNING:
        tally.asked.append(facts.job_id)
    else:
        tally.changed.append(facts.job_id)


def _perform(tally: Tally, job_id: UUID, reason: str, actor: Actor) -> None:
    job = VERBS[tally.verb](job_id, reason=reason, actor=actor)
    waits = tally.verb in ("cancel", "pause") and job.status == Status.RUNNING
    (tally.asked if waits else tally.changed).append(job_id)
    if job.pk != job_id:
        tally.made[job_id] = job.pk
