"""Forgets what ended long ago: whole retry chains and whole groups, never a part of one.

Old is what nothing has happened to since: a job that waited for months and ended today is young. Stays, however old:
what is live, what blocks a target, what somebody keeps (`keep`, or a row of another app that does not let go).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from django.db import IntegrityError, models

from jobs import clock, db
from jobs.conf import conf
from jobs.engine.maintenance import rollup_compaction
from jobs.models import Job, JobEvent, JobGroup, JobLog, JobRun, Lease, Worker
from jobs.models.group import OPEN_GROUP_STATUSES
from jobs.states import TERMINAL

logger = logging.getLogger("jobs.engine.maintenance.retention")
BATCH, GROUPS = 500, 20
ROUND_SEC, BUSY_SEC, IDLE_SEC = 10.0, 60.0, 3600.0
NOBODY = UUID(int=0)


@dataclass
class Pruned:
    """How many rows went (minutes: were folded into days)."""

    jobs: int = 0
    groups: int = 0
    minutes: int = 0
    workers: int = 0
    leases: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in vars(self).items())


class Pruning:
    """One pass over what is old. It may be stopped in between and goes on where it was."""

    def __init__(self, older_than: timedelta, *, dry_run: bool = False) -> None:
        self.before = clock.now() - older_than
        self.dry_run = dry_run
        self.done = Pruned()
        self._horizon = clock.first_id(self.before)
        self._last_job = self._last_group = NOBODY

    def go(self, seconds: float | None = None) -> bool:
        """Works for about so long. Returns whether the pass is over."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for step in (self._chains, self._groups, self._minutes):
            while step():
                if deadline is not None and time.monotonic() > deadline:
                    return False
        silent = Worker.objects.filter(heartbeat_at__lt=self.before)
        ended = Lease.objects.filter(pk__lt=self._horizon, ended_at__lt=self.before)
        self.done.workers += silent.count() if self.dry_run else silent.delete()[0]
        self.done.leases += ended.count() if self.dry_run else ended.delete()[0]
        return True

    # Each step is one batch in one transaction, and returns whether there may be more.

    def _chains(self) -> bool:
        # Judged here, row by row: a condition would lure SQLite away from the primary key.
        columns = ("pk", "retry_of_id", "group_id", "status", "holds_lane")
        found = list(self._after(_jobs(), self._last_job).values_list(*columns)[:BATCH])
        ended = [
            pk for pk, *origin, status, holds in found if origin == [None, None] and status in TERMINAL and not holds
        ]
        try:
            self.done.jobs += self._end_chains(ended)
        except IntegrityError:  # somebody's constraint that we know nothing of: it must not keep the others
            for root in ended:
                try:
                    self.done.jobs += self._end_chains([root])
                except IntegrityError as error:
                    logger.warning("job %s and its retries cannot be deleted: %s", root, error)
        self._last_job = found[-1][0] if found else self._last_job
        return bool(found)

    def _end_chains(self, roots: Sequence[UUID]) -> int:
        with self._transaction():
            chains = self._whole_chains(self._locked(Job, roots))
            kept = self._kept(list(chain.from_iterable(chains.values())))
            ids = [each for members in chains.values() if kept.isdisjoint(members) for each in members]
            if not self.dry_run:
                delete_jobs(ids)
        return len(ids)

    def _whole_chains(self, roots: Iterable[UUID]) -> dict[UUID, list[UUID]]:
        """Each root with all that followed it, if all of that has ended and nobody else is busy with it."""
        chains = {root: [root] for root in roots}
        tails = {root: root for root in chains}
        while tails:
            # A successor needs a lock on its predecessor to be born: behind a locked tail, none can appear.
            columns = ("pk", "retry_of_id", "status", "holds_lane")
            found = list(_jobs().filter(retry_of_id__in=list(tails)).values_list(*columns))
            ours = set(self._locked(Job, [row[0] for row in found]))
            following = {}
            for pk, predecessor, status, holds_lane in found:
                root = tails[predecessor]
                if pk in ours and status in TERMINAL and not holds_lane:
                    chains[root].append(pk)
                    following[pk] = root
                else:
                    del chains[root]
            tails = following
        return chains

    def _groups(self) -> bool:
        ended = JobGroup.objects.exclude(status__in=OPEN_GROUP_STATUSES).filter(finished_at__lt=self.before)
        found = list(self._after(ended, self._last_group).values_list("pk", flat=True)[:GROUPS])
        for group in found:
            try:
                self._end_group(group)
            except IntegrityError as error:
                logger.warning("group %s cannot be deleted: %s", group, error)
        self._last_group = found[-1] if found else self._last_group
        return bool(found)

    def _end_group(self, group: UUID) -> None:
        with self._transaction():
            if not self._locked(JobGroup, [group]):
                return
            # Whoever changes a member locks its group first, so the members need no locks of their own.
            members = list(_jobs().filter(group_id=group).values_list("pk", "status", "holds_lane"))
            ids = [pk for pk, _, _ in members]
            if any(status not in TERMINAL or holds_lane for _, status, holds_lane in members):
                return
            if self._kept(ids) or kept_by_others(JobGroup, [group]):
                return
            if not self.dry_run:
                delete_jobs(ids)
                let_go(JobGroup, [group])
                take_along([group])
                JobGroup.objects.filter(pk=group)._raw_delete(db.alias())
        self.done.jobs += len(ids)
        self.done.groups += 1

    def _minutes(self) -> bool:
        if self.dry_run:
            self.done.minutes = rollup_compaction.foldable(self.before).count()
            return False
        folded = rollup_compaction.fold_oldest_day(self.before)
        self.done.minutes += folded
        return bool(folded)

    def _after(self, rows: Any, last: UUID) -> Any:
        """The next old ones along the primary key, whose ids tell their age."""
        return rows.filter(pk__gt=last, pk__lt=self._horizon).order_by("pk")

    def _transaction(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dry_run else db.atomic()

    def _locked(self, model: type[Job] | type[JobGroup], ids: Sequence[UUID]) -> list[UUID]:
        rows: Any = model._base_manager.using(db.alias()).filter(pk__in=ids).order_by("pk")
        if not self.dry_run:
            rows = rows.select_for_update(skip_locked=True)
        return list(rows.values_list("pk", flat=True))

    def _kept(self, ids: Sequence[UUID]) -> set[UUID]:
        """Jobs that must stay: something has happened to them lately, or somebody keeps them."""
        kept: set[UUID] = set()
        for part in _parts(ids):
            lately = JobEvent.objects.filter(job_id__in=part, at__gte=self.before)
            kept.update(lately.values_list("job_id", flat=True))
            kept |= kept_by_others(Job, part)
        return kept


_under_way: Pruning | None = None


def one_round() -> object:
    """The housekeeping duty: a bounded part of a pass, if the site wants to forget at all."""
    global _under_way
    if conf.RETENTION_DAYS is None:
        _under_way = None
        return "off"
    _under_way = _under_way or Pruning(timedelta(days=conf.RETENTION_DAYS))
    pruned = _under_way.done
    if _under_way.go(ROUND_SEC):
        _under_way = None
    return str(pruned)


def pause_sec() -> float:
    """Once an hour is enough, unless a round was too short for all there was."""
    return BUSY_SEC if _under_way is not None else IDLE_SEC


def delete_jobs(ids: Sequence[UUID]) -> None:
    """Set by set, what refers to jobs first. `_raw_delete`, because `delete` would load and collect each row."""
    using = db.alias()
    for part in _parts(ids):
        take_along(part)  # other apps may find what is theirs by a job's events
        for model in (JobEvent, JobLog, JobRun):
            rows: Any = model._base_manager.using(using).filter(job_id__in=part)
            rows._raw_delete(using)
        let_go(Job, part)
    for part in _parts(ids):  # a foreign key along a chain is looked at when the transaction ends
        _jobs().filter(pk__in=part)._raw_delete(using)


def _parts(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _jobs() -> Any:
    return Job.objects.all()


Keeper = Callable[[Sequence[UUID]], Iterable[UUID]]
Follower = Callable[[Sequence[UUID]], None]
_keepers: list[Keeper] = []
_followers: list[Follower] = []


def keep(keeper: Keeper) -> Keeper:
    """Register a keeper: it gets ids of jobs, or of groups, and says which of them must stay. Twice is once."""
    if keeper not in _keepers:
        _keepers.append(keeper)
    return keeper


def forget(keeper: Keeper) -> None:
    if keeper in _keepers:
        _keepers.remove(keeper)


def goes_along(follower: Follower) -> Follower:
    """Register what goes with jobs, or groups, that are deleted: it gets their ids in the same transaction."""
    if follower not in _followers:
        _followers.append(follower)
    return follower


def take_along(ids: Sequence[UUID]) -> None:
    for follower in _followers:
        follower(ids)


def kept_by_others(model: type[models.Model], ids: Sequence[UUID]) -> set[UUID]:
    """What a keeper names stays, and what rows of other apps refer to, which are theirs to delete or to let go."""
    kept = set(chain.from_iterable(keeper(ids) for keeper in _keepers))
    for relation in _foreign(model):
        if relation.on_delete is not models.SET_NULL:
            kept.update(_referring(relation, ids).values_list(relation.field.attname, flat=True))
    return kept


def let_go(model: type[models.Model], ids: Sequence[UUID]) -> None:
    """What Django does for SET_NULL when it deletes row by row."""
    for relation in _foreign(model):
        if relation.on_delete is models.SET_NULL:
            _referring(relation, ids).update(**{relation.field.name: None})


def _foreign(model: type[models.Model]) -> Iterator[Any]:
    """Foreign keys of other apps to this model, those behind many-to-many fields too."""
    for field in model._meta.get_fields(include_hidden=True):
        is_reverse = field.auto_created and not field.concrete and (field.one_to_one or field.one_to_many)
        if is_reverse and field.related_model._meta.app_label != model._meta.app_label:  # type: ignore[union-attr]
            yield field


def _referring(relation: Any, ids: Sequence[UUID]) -> Any:
    return relation.related_model._base_manager.using(db.alias()).filter(**{f"{relation.field.name}__in": ids})
