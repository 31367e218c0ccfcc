"""Actions on many jobs: which ones a command is about, one service call each, and an honest word on every one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import clock, ids
from jobs.actors import Actor
from jobs.engine.facts import facts_of, facts_of_many
from jobs.engine.transitions import get
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.management import base
from jobs.models import Job
from jobs.models.expressions import has_tag
from jobs.models.job import JobQuerySet
from jobs.refusal_text import followed_by, short_error, short_reason
from jobs.services import jobs as job_services
from jobs.states import ARROWS, LIVE, DryRun, JobFacts, Refusal, Status
from jobs.validation import fields

CHUNK = 500
LOOK_BACK = 100_000
MOST = 10_000_000
NOBODY = UUID(int=0)
VERBS: dict[str, Callable[..., Job]] = {
    "cancel": job_services.cancel,
    "pause": job_services.pause,
    "resume": job_services.resume,
    "retry": job_services.retry,
    "resolve": job_services.resolve,
    "release": job_services.release,
}
# By filter these begin with less than they could: nobody means to run again what has completed.
UNLESS_SAID = {"retry": frozenset({Status.FAILED}), "resume": frozenset({Status.PAUSED})}
FEW = 5
FILTERS = ("status", "type", "target", "tenant", "tag", "since", "resource")


def add_filters(parser: CommandParser, *, limit: int | None) -> None:
    several = "may be repeated or name several with commas"
    parser.add_argument("--status", action="append", help=f"In this state; {several}.")
    parser.add_argument("--type", action="append", help=f"Of this job type; {several}.")
    parser.add_argument("--target", help="In the lane of this target.")
    parser.add_argument("--tenant", help="Of this tenant.")
    parser.add_argument("--tag", action="append", help="With this tag; if repeated, with all of them.")
    parser.add_argument("--since", metavar="DURATION", help="Submitted within, e.g. 30m, 1h or 7d.")
    parser.add_argument("--resource", action="append", help=f"Of this resource; {several}.")
    parser.add_argument("--limit", default=limit, help=f"At most so many jobs (default {limit or 'all'}).")


@dataclass(frozen=True)
class Selection:
    """What the filters say, read and judged."""

    condition: Q
    statuses: frozenset[Status]
    since: UUID | None
    limit: int | None
    is_empty: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> Selection:
        limit, since = given.get("limit"), given.get("since")
        condition = Q()
        if types := base.names(given.get("type"), "--type"):
            condition &= Q(job_type__in=types)
        if resources := base.names(given.get("resource"), "--resource"):
            condition &= Q(resource__in=resources)
        if given.get("tenant"):
            condition &= Q(tenant=fields.parse_tenant(given["tenant"], "--tenant"))
        if given.get("target"):
            condition &= Q(target=fields.parse_target(given["target"], "--target"))
        for tag in given.get("tag") or ():
            condition &= has_tag(fields.parse_text(tag, "--tag", max_length=fields.TAG_LENGTH))
        statuses = {name.upper() for name in base.names(given.get("status"), "--status")}
        if statuses - set(Status):
            raise InvalidInput("--status", _("must be one of %s") % ", ".join(Status))
        return cls(
            condition=condition,
            statuses=frozenset(map(Status, statuses)),
            since=None if since is None else clock.first_id(clock.now() - base.duration(since, "--since")),
            limit=None if limit is None else base.whole_number(str(limit), "--limit", 1, MOST),
            is_empty=not any(given.get(name) for name in FILTERS),
        )

    def jobs(self) -> JobQuerySet:
        found = Job.objects.filter(self.condition)
        if self.statuses:
            found = found.filter(status__in=sorted(self.statuses))
        return found if self.since is None else found.filter(pk__gte=self.since)

    def newest(self) -> tuple[list[Job], bool]:
        """The newest jobs, and whether older ones were not looked at.

        Nothing leads to old jobs by their type or tag, so without `--since` only so many are looked through.
        """
        found = self.jobs().select_related("run", "retried_by").order_by("-pk")
        is_bounded = self.is_empty or self.since is not None or (bool(self.statuses) and self.statuses <= LIVE)
        newest = Job.objects.order_by("-pk").values_list("pk", flat=True)
        edge: UUID | None = None if is_bounded else newest[LOOK_BACK : LOOK_BACK + 1].first()
        if edge is not None:
            found = found.filter(pk__gte=edge)
        jobs = list(found[: self.limit])
        return jobs, edge is not None and len(jobs) < (self.limit or MOST)

    def walk(self, statuses: frozenset[Status]) -> Iterator[list[Job]]:
        """All of them in chunks, oldest first. What is submitted while we walk is not among them."""
        found = self.jobs().filter(status__in=sorted(statuses), pk__lt=ids.uuid7()).order_by("pk")
        last, left = NOBODY, self.limit or MOST
        while left and (chunk := list(found.filter(pk__gt=last)[: min(CHUNK, left)])):
            yield chunk
            last, left = chunk[-1].pk, left - len(chunk)


@dataclass
class Tally:
    """What became of the jobs that a verb was tried on, or would become of them."""

    verb: str
    dry_run: bool = False
    changed: list[UUID] = field(default_factory=list)
    asked: list[UUID] = field(default_factory=list)
    made: dict[UUID, UUID] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, job_id: UUID | str, why: str) -> None:
        self.skipped.setdefault(why, []).append(str(job_id))

    def lines(self) -> list[str]:
        skipped = sum(map(len, self.skipped.values()))
        counts = {"verb": self.verb, "done": len(self.changed), "asked": len(self.asked), "skipped": skipped}
        if self.dry_run:
            first = _("%(verb)s would change %(done)d, ask %(asked)d to stop and skip %(skipped)d.") % counts
        else:
            first = _("%(verb)s: %(done)d changed, %(asked)d asked to stop, %(skipped)d skipped.") % counts
        lines = [first, *(f"  {old} → {new}" for old, new in list(self.made.items())[:FEW])]
        for why, job_ids in self.skipped.items():
            named = f" ({', '.join(job_ids)})" if len(job_ids) <= FEW else ""
            count = ngettext("%d job skipped", "%d jobs skipped", len(job_ids)) % len(job_ids)
            lines.append(f"  {count}: {why}{named}")
        return lines

    def document(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "dry_run": self.dry_run,
            "changed": [str(each) for each in self.changed],
            "asked": [str(each) for each in self.asked],
            "made": {str(old): str(new) for old, new in self.made.items()},
            "skipped": [{"reason": why, "ids": job_ids} for why, job_ids in self.skipped.items()],
        }


def by_ids(verb: str, job_ids: Iterable[str], *, dry_run: bool, reason: str, actor: Actor) -> Tally:
    tally, foreseen = Tally(verb, dry_run), DryRun(verb)
    for given in job_ids:
        with _skip_refused(tally, given):
            if dry_run:
                facts = facts_of(get(fields.parse_id(given)))
                _foretell(tally, facts, foreseen.refusal(facts))
            else:
                _perform(tally, fields.parse_id(given), reason, actor)
    return tally


def by_filter(verb: str, selection: Selection, *, dry_run: bool, reason: str, actor: Actor) -> Tally:
    """Each job in its own transaction, so that one that cannot does not undo the others.

    Of a retry chain only the latest attempt is meant.
    """
    possible = frozenset(arrow.source for arrow in ARROWS if arrow.verb == verb and arrow.source is not None)
    if impossible := sorted(selection.statuses - possible):
        names = {"verb": verb, "status": impossible[0]}
        raise InvalidInput("--status", _("nobody can %(verb)s a job that is %(status)s") % names)
    tally, foreseen = Tally(verb, dry_run), DryRun(verb)
    for chunk in selection.walk(selection.statuses or UNLESS_SAID.get(verb, possible)):
        for facts in facts_of_many(chunk).values():
            if facts.superseded_by is not None:
                tally.skip(facts.job_id, followed_by(facts.superseded_by.status))
            elif dry_run:
                _foretell(tally, facts, foreseen.refusal(facts))
            else:
                with _skip_refused(tally, facts.job_id):
                    _perform(tally, facts.job_id, reason, actor)
    return tally


@contextmanager
def _skip_refused(tally: Tally, job_id: UUID | str) -> Iterator[None]:
    try:
        yield
    except InvalidInput:
        raise
    except JobSchedulerError as error:
        tally.skip(job_id, short_error(error))


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
