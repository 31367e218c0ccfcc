"""Which jobs a command is about: ids, or filters that are walked in the order of the primary key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser
from django.db.models import BooleanField, F, Func, Q, Value
from django.utils.translation import gettext as _

from jobs import cli, clock, db, ids, parsing
from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.models.job import JobQuerySet
from jobs.states import LIVE, Status

CHUNK = 500
LOOK_BACK = 100_000
MOST = 10_000_000
NOBODY = UUID(int=0)
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
        limit = given.get("limit")
        since = given.get("since")
        return cls(
            condition=_condition(given),
            statuses=_statuses(given.get("status")),
            since=None if since is None else clock.first_id(clock.now() - cli.duration(since, "--since")),
            limit=None if limit is None else cli.whole_number(str(limit), "--limit", 1, MOST),
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
        edge = None if self._is_bounded() else _nth_newest(LOOK_BACK)
        if edge is not None:
            found = found.filter(pk__gte=edge)
        jobs = list(found[: self.limit])
        return jobs, edge is not None and len(jobs) < (self.limit or MOST)

    def walk(self, statuses: frozenset[Status]) -> Iterator[list[Job]]:
        """All of them in chunks, oldest first. What is submitted while we walk is not among them."""
        found = self.jobs().filter(status__in=sorted(statuses), pk__lt=ids.uuid7())
        found = found.order_by("pk")
        last, left = NOBODY, self.limit or MOST
        while left and (chunk := list(found.filter(pk__gt=last)[: min(CHUNK, left)])):
            yield chunk
            last, left = chunk[-1].pk, left - len(chunk)

    def _is_bounded(self) -> bool:
        return self.is_empty or self.since is not None or (bool(self.statuses) and self.statuses <= LIVE)


class HasTag(Func):
    """SQLite's JSON has no containment; this is it."""

    template = "EXISTS (SELECT 1 FROM json_each(%(expressions)s)"
    arg_joiner = ") WHERE value = "
    output_field = BooleanField()


def tagged(tag: str) -> Q:
    return Q(HasTag(F("tags"), Value(tag))) if db.is_sqlite() else Q(tags__contains=[tag])


def _condition(given: dict[str, Any]) -> Q:
    condition = Q()
    if types := cli.names(given.get("type"), "--type"):
        condition &= Q(job_type__in=types)
    if resources := cli.names(given.get("resource"), "--resource"):
        condition &= Q(resource__in=resources)
    if given.get("tenant"):
        condition &= Q(tenant=parsing.tenant(given["tenant"], "--tenant"))
    if given.get("target"):
        condition &= Q(target=parsing.target(given["target"], "--target"))
    for tag in given.get("tag") or ():
        condition &= tagged(parsing.text(tag, "--tag", max_length=parsing.TAG_LENGTH))
    return condition


def _statuses(values: list[str] | None) -> frozenset[Status]:
    names = [name.upper() for name in cli.names(values, "--status")]
    for name in names:
        if name not in list(Status):
            raise InvalidInput("--status", _("must be one of %s") % ", ".join(Status))
    return frozenset(map(Status, names))


def _nth_newest(count: int) -> UUID | None:
    newest = Job.objects.order_by("-pk").values_list("pk", flat=True)
    return newest[count : count + 1].first()
