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
from jobs.engine import chains, groups
from jobs.engine.moves import get
from jobs.errors import InvalidInput, JobSchedulerError, LiveTail, NotFound, WrongState
from jobs.management.selecting import Selection
from jobs.models import Gate, Job
from jobs.states import ARROWS, TERMINAL, Status, StopMode, arrow

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
    tally = Tally(verb, dry_run)
    for given in job_ids:
        try:
            if dry_run:
                job = get(parsing.job_id(given))
                _foretell(tally, job, _retry_refusal(job) if verb == "retry" else refusal(verb, job))
            else:
                _perform(tally, parsing.job_id(given), reason, actor)
        except InvalidInput:
            raise
        except JobSchedulerError as error:
            tally.skip(given, _why(verb, error))
    return tally


def by_filter(verb: str, selection: Selection, *, dry_run: bool, reason: str, actor: Actor) -> Tally:
    """Each job in its own transaction, so that one that cannot does not undo the others."""
    tally = Tally(verb, dry_run)
    for chunk in selection.walk(_wanted(verb, selection)):
        for job in chunk:
            why = refusal(verb, job)
            if dry_run or why:
                _foretell(tally, job, why)
                continue
            try:
                _perform(tally, job.pk, reason, actor)
            except InvalidInput:
                raise
            except JobSchedulerError as error:
                tally.skip(job.pk, _why(verb, error))
    return tally


def refusal(verb: str, job: Job) -> str:
    """Why the verb would change nothing, as far as the row tells; empty if it would."""
    if arrow(verb, job.status) is None:
        return _("is %s") % job.status
    if verb in ("cancel", "pause") and job.cancel_requested:
        is_upgrade = verb == "cancel" and job.cancel_mode == StopMode.PAUSE
        return "" if is_upgrade else _("was already asked to %s") % job.cancel_mode.lower()
    if verb in ("resume", "retry", "resolve") and job.status in TERMINAL and hasattr(job, "retried_by"):
        return _("is already followed by a retry")
    if verb == "resolve" and job.resolved_at is not None:
        return _("is already resolved")
    if verb == "release" and groups.must_wait(job):
        return _("waits for another place of its group")
    return ""


def _wanted(verb: str, selection: Selection) -> frozenset[Status]:
    possible = sources(verb)
    if not selection.statuses:
        return UNLESS_SAID.get(verb, possible)
    if impossible := sorted(selection.statuses - possible):
        told = {"verb": verb, "status": impossible[0]}
        raise InvalidInput("--status", _("nobody can %(verb)s a job that is %(status)s") % told)
    return selection.statuses


def _foretell(tally: Tally, job: Job, why: str) -> None:
    if why:
        tally.skip(job.pk, why)
    elif tally.verb in ("cancel", "pause") and job.status == Status.RUNNING:
        tally.asked.append(job.pk)
    else:
        tally.changed.append(job.pk)


def _retry_refusal(job: Job) -> str:
    """Whichever job of a chain is named, its tail counts; one that waits out its backoff is sent off."""
    tail = chains.tail(job)
    if tail.status in TERMINAL:
        return ""
    if tail.retry_of_id is None:
        return _("is %s") % tail.status
    is_waiting = tail.gate == Gate.TIME and tail.not_before is not None
    return "" if is_waiting else _followed(tail.status)


def _perform(tally: Tally, job_id: UUID, reason: str, actor: Actor) -> None:
    job = VERBS[tally.verb](job_id, reason=reason, actor=actor)
    waits = tally.verb in ("cancel", "pause") and job.status == Status.RUNNING
    (tally.asked if waits else tally.changed).append(job_id)
    if job.pk != job_id:
        tally.made[job_id] = job.pk


def _why(verb: str, error: JobSchedulerError) -> str:
    """In a few words, the same for all jobs that share them."""
    if isinstance(error, NotFound):
        return _("there is no such job")
    if isinstance(error, LiveTail):
        return _followed(error.status)
    if isinstance(error, WrongState) and arrow(verb, error.status) is None:
        return _("is %s") % error.status
    return str(error).rstrip(".")


def _followed(status: str) -> str:
    return _("is already followed by a job that is %s") % status
