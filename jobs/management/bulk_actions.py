"""Apply an action to many jobs: select them by id or filter, call the service for each, report every result."""

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
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.ids import min_id_at
from jobs.management import base
from jobs.models import Job
from jobs.models.expressions import has_tag
from jobs.models.job import JobQuerySet
from jobs.models.payload import JOB_PAYLOAD, read_small
from jobs.refusal_text import describe_error, describe_later_attempt, describe_refusal
from jobs.services import jobs as job_services
from jobs.states import LIVE, OPERATOR_VERBS, TRANSITIONS, DryRun, JobFacts, Refusal, Status
from jobs.validation import fields

CHUNK_SIZE = 500
SCAN_LIMIT = 100_000
MAX_JOBS = 10_000_000
MIN_ID = UUID(int=0)
SHOWN_IDS_LIMIT = 5
ACTIONS: dict[str, Callable[..., Job]] = {verb: getattr(job_services, verb) for verb in OPERATOR_VERBS}
# The states that a filter without --status selects; completed jobs are not meant to run again.
DEFAULT_STATUSES = {"retry": frozenset({Status.FAILED}), "resume": frozenset({Status.PAUSED})}
FILTER_OPTIONS = ("status", "type", "target", "tenant", "tag", "since", "resource")


def add_filters(parser: CommandParser, *, limit: int | None) -> None:
    repeatable = "may be repeated, or several with commas"
    parser.add_argument("--status", action="append", help=f"In this state; {repeatable}.")
    parser.add_argument("--type", action="append", help=f"Of this job type; {repeatable}.")
    parser.add_argument("--target", help="Of this target.")
    parser.add_argument("--tenant", help="Of this tenant.")
    parser.add_argument("--tag", action="append", help="With this tag; if repeated, with all of these tags.")
    parser.add_argument("--since", metavar="DURATION", help="Submitted within this time, e.g. 30m, 1h or 7d.")
    parser.add_argument("--resource", action="append", help=f"Of this resource; {repeatable}.")
    parser.add_argument("--limit", default=limit, help=f"Maximum number of jobs (default {limit or 'all'}).")


@dataclass(frozen=True)
class Selection:
    """The parsed filters of a command."""

    condition: Q
    statuses: frozenset[Status]
    since: UUID | None
    limit: int | None
    is_empty: bool

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Selection:
        limit, since = options.get("limit"), options.get("since")
        condition = Q()
        if types := base.parse_names(options.get("type"), "--type"):
            condition &= Q(job_type__in=types)
        if resources := base.parse_names(options.get("resource"), "--resource"):
            condition &= Q(resource__in=resources)
        if options.get("tenant"):
            condition &= Q(tenant=fields.parse_tenant(options["tenant"], "--tenant"))
        if options.get("target"):
            condition &= Q(target=fields.parse_target(options["target"], "--target"))
        for tag in options.get("tag") or ():
            condition &= has_tag(fields.parse_text(tag, "--tag", max_length=fields.TAG_LENGTH))
        names = base.parse_names(options.get("status"), "--status")
        statuses = (fields.parse_choice(name.upper(), "--status", tuple(Status)) for name in names)
        return cls(
            condition=condition,
            statuses=frozenset(map(Status, statuses)),
            since=None if since is None else min_id_at(clock.now() - fields.parse_duration(since, "--since")),
            limit=None if limit is None else base.parse_whole_number(str(limit), "--limit", 1, MAX_JOBS),
            is_empty=not any(options.get(name) for name in FILTER_OPTIONS),
        )

    def jobs(self) -> JobQuerySet:
        jobs = Job.objects.filter(self.condition)
        if self.statuses:
            jobs = jobs.filter(status__in=sorted(self.statuses))
        return jobs if self.since is None else jobs.filter(pk__gte=self.since)

    def list_newest(self) -> tuple[list[Job], bool]:
        """Return the newest jobs, and whether older ones were not searched.

        No index leads to old jobs by their type or tag, so without `--since` only the newest SCAN_LIMIT are searched.
        """
        rows = self.jobs().select_related("run", "retried_by").order_by("-pk")
        is_bounded = self.is_empty or self.since is not None or (bool(self.statuses) and self.statuses <= LIVE)
        newest = Job.objects.order_by("-pk").values_list("pk", flat=True)
        oldest_id: UUID | None = None if is_bounded else newest[SCAN_LIMIT : SCAN_LIMIT + 1].first()
        if oldest_id is not None:
            rows = rows.filter(pk__gte=oldest_id)
        rows = rows.defer("checkpoint", "retried_by__params", "retried_by__checkpoint")
        jobs = read_small(rows, JOB_PAYLOAD, self.limit)
        return jobs, oldest_id is not None and len(jobs) < (self.limit or MAX_JOBS)

    def iterate_chunks(self, statuses: frozenset[Status]) -> Iterator[list[Job]]:
        """Yield the jobs in chunks, oldest first, without those that are submitted meanwhile."""
        rows = self.jobs().filter(status__in=sorted(statuses), pk__lt=ids.uuid7()).order_by("pk")
        rows, last, left = rows.defer("params", "checkpoint"), MIN_ID, self.limit or MAX_JOBS
        while left and (chunk := list(rows.filter(pk__gt=last)[: min(CHUNK_SIZE, left)])):
            yield chunk
            last, left = chunk[-1].pk, left - len(chunk)


@dataclass
class ActionResult:
    """The jobs that an action changed, requested to stop or skipped; with `dry_run`, would have."""

    action: str
    dry_run: bool = False
    changed: list[UUID] = field(default_factory=list)
    stop_requested: list[UUID] = field(default_factory=list)
    new_jobs: dict[UUID, UUID] = field(default_factory=dict)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def skip(self, job_id: UUID | str, reason: str) -> None:
        self.skipped.setdefault(reason, []).append(str(job_id))

    def format_lines(self) -> list[str]:
        skipped = sum(map(len, self.skipped.values()))
        counts = {"verb": self.action, "done": len(self.changed), "asked": len(self.stop_requested), "skipped": skipped}
        summary = _("%(verb)s: %(done)d changed, %(asked)d stop requests, %(skipped)d skipped.")
        if self.dry_run:
            summary = _("%(verb)s (dry run): %(done)d would change, %(asked)d stop requests, %(skipped)d skipped.")
        new_jobs = list(self.new_jobs.items())[:SHOWN_IDS_LIMIT]
        lines = [summary % counts, *(f"  {old} → {new}" for old, new in new_jobs)]
        for reason, job_ids in self.skipped.items():
            suffix = f" ({', '.join(job_ids)})" if len(job_ids) <= SHOWN_IDS_LIMIT else ""
            count = ngettext("%d job skipped", "%d jobs skipped", len(job_ids)) % len(job_ids)
            lines.append(f"  {count}: {reason}{suffix}")
        return lines

    def document(self) -> dict[str, Any]:
        return {
            "verb": self.action,
            "dry_run": self.dry_run,
            "changed": [str(job_id) for job_id in self.changed],
            "asked": [str(job_id) for job_id in self.stop_requested],
            "made": {str(old): str(new) for old, new in self.new_jobs.items()},
            "skipped": [{"reason": reason, "ids": job_ids} for reason, job_ids in self.skipped.items()],
        }


def apply_to_ids(action: str, job_ids: Iterable[str], *, dry_run: bool, reason: str, actor: Actor) -> ActionResult:
    """Apply an action to these jobs. Raise InvalidInput if one of them is no id."""
    result, prediction = ActionResult(action, dry_run), DryRun(action)
    for job_id in job_ids:
        with _skip_refused(result, job_id):
            if dry_run:
                facts = job_services.get_facts(job_services.get(job_id))
                _predict(result, facts, prediction.refusal(facts))
            else:
                _apply(result, fields.parse_id(job_id), reason, actor)
    return result


def apply_to_selection(action: str, selection: Selection, *, dry_run: bool, reason: str, actor: Actor) -> ActionResult:
    """Apply an action to the selected jobs, each in its own transaction, so that a refusal does not undo the others.

    Of a retry chain only the latest attempt is changed.
    """
    possible = frozenset(t.source for t in TRANSITIONS if t.verb == action and t.source is not None)
    if impossible := sorted(selection.statuses - possible):
        values = {"verb": action, "status": impossible[0]}
        raise InvalidInput("--status", _("%(verb)s cannot be applied to a job that is %(status)s") % values)
    result, prediction = ActionResult(action, dry_run), DryRun(action)
    for chunk in selection.iterate_chunks(selection.statuses or DEFAULT_STATUSES.get(action, possible)):
        for facts in job_services.get_facts_by_id(chunk).values():
            if facts.superseded_by is not None:
                result.skip(facts.job_id, describe_later_attempt(facts.superseded_by.status))
            elif dry_run:
                _predict(result, facts, prediction.refusal(facts))
            else:
                with _skip_refused(result, facts.job_id):
                    _apply(result, facts.job_id, reason, actor)
    return result


@contextmanager
def _skip_refused(result: ActionResult, job_id: UUID | str) -> Iterator[None]:
    try:
        yield
    except InvalidInput:
        raise
    except JobSchedulerError as error:
        result.skip(job_id, describe_error(error))


def _predict(result: ActionResult, facts: JobFacts, refusal: Refusal | None) -> None:
    """Add a job to the result of a dry run."""
    if refusal is not None:
        result.skip(facts.job_id, describe_refusal(refusal))
    elif result.action in ("cancel", "pause") and facts.status == Status.RUNNING:
        result.stop_requested.append(facts.job_id)
    else:
        result.changed.append(facts.job_id)


def _apply(result: ActionResult, job_id: UUID, reason: str, actor: Actor) -> None:
    job = ACTIONS[result.action](job_id, reason=reason, actor=actor)
    is_requested = result.action in ("cancel", "pause") and job.status == Status.RUNNING
    (result.stop_requested if is_requested else result.changed).append(job_id)
    if job.pk != job_id:
        result.new_jobs[job_id] = job.pk
