"""Delete jobs and groups that finished long ago: whole retry chains and whole groups, never a part of one.

Then targets without jobs, leases that ended and workers that are gone; minutes of the rollup become days.

A job's age counts from its last event: one that waited for months and finished today is young. Never deleted: live
jobs, jobs that block a target, and jobs with a veto (`register_veto`, or a row of another app that refers to them).

The events of a job are deleted with it. Activities have a retention of their own, ACTIVITY_RETENTION_DAYS.
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
from django.db.models import Exists, OuterRef

from jobs import clock, db
from jobs.conf import conf
from jobs.engine.maintenance import rollup_compaction
from jobs.ids import min_id_at
from jobs.models import Activity, Job, JobEvent, JobGroup, JobLog, JobRun, Lease, Target, Worker
from jobs.models.group import OPEN_GROUP_STATUSES
from jobs.states import TERMINAL
from jobs.triggers import allow_pruning

logger = logging.getLogger("jobs.engine.maintenance.retention")
BATCH_SIZE, GROUP_BATCH_SIZE = 500, 20
ROUND_SEC, BUSY_SEC, IDLE_SEC = 10.0, 60.0, 3600.0
BEFORE_ALL = UUID(int=0)


@dataclass
class PruneCounts:
    """How many rows were deleted (minutes: compacted into days)."""

    jobs: int = 0
    groups: int = 0
    minutes: int = 0
    workers: int = 0
    leases: int = 0
    targets: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in vars(self).items())


class PrunePass:
    """One pass over everything that is old. It may be interrupted, and continues where it was."""

    def __init__(self, older_than: timedelta, *, dry_run: bool = False) -> None:
        self.before = clock.now() - older_than
        self.dry_run = dry_run
        self.counts = PruneCounts()
        self._horizon = min_id_at(self.before)
        self._last_job = self._last_group = self._last_target = BEFORE_ALL

    def run(self, seconds: float | None = None) -> bool:
        """Work for about so many seconds, or to the end. Return whether the pass is complete."""
        deadline = None if seconds is None else time.monotonic() + seconds
        for prune_batch in (self._prune_chains, self._prune_groups, self._prune_targets, self._compact_day):
            while prune_batch():
                if deadline is not None and time.monotonic() > deadline:
                    return False
        silent = Worker.objects.filter(heartbeat_at__lt=self.before)
        ended = Lease.objects.filter(pk__lt=self._horizon, ended_at__lt=self.before)
        self.counts.workers += silent.count() if self.dry_run else silent.delete()[0]
        self.counts.leases += ended.count() if self.dry_run else ended.delete()[0]
        return True

    # Each step is one batch in one transaction, and returns whether there may be more.

    def _prune_chains(self) -> bool:
        # The condition is tested here, row by row: in the query, SQLite would not scan the primary key.
        columns = ("pk", "retry_of_id", "group_id", "status", "holds_lane")
        rows = list(self._next_old(_all_jobs(), self._last_job).values_list(*columns)[:BATCH_SIZE])
        roots = [
            pk
            for pk, *origin, status, holds_lane in rows
            if origin == [None, None] and status in TERMINAL and not holds_lane
        ]
        try:
            self.counts.jobs += self._delete_chains(roots)
        except IntegrityError:  # a constraint of another app: the other chains can still be deleted
            for root in roots:
                try:
                    self.counts.jobs += self._delete_chains([root])
                except IntegrityError as error:
                    logger.warning("job %s and its retries cannot be deleted: %s", root, error)
        self._last_job = rows[-1][0] if rows else self._last_job
        return bool(rows)

    def _delete_chains(self, roots: Sequence[UUID]) -> int:
        with self._transaction():
            chains = self._find_finished_chains(self._lock_rows(Job, roots))
            retained = self._find_retained(list(chain.from_iterable(chains.values())))
            job_ids = [job_id for members in chains.values() if retained.isdisjoint(members) for job_id in members]
            if not self.dry_run:
                delete_jobs(job_ids)
        return len(job_ids)

    def _find_finished_chains(self, roots: Iterable[UUID]) -> dict[UUID, list[UUID]]:
        """Return each root with all its retries, if all of them have finished and none is locked elsewhere."""
        chains = {root: [root] for root in roots}
        root_by_latest = {root: root for root in chains}
        while root_by_latest:
            # A retry is inserted under a lock on its predecessor: behind a locked tail, none can appear.
            columns = ("pk", "retry_of_id", "status", "holds_lane")
            rows = list(_all_jobs().filter(retry_of_id__in=list(root_by_latest)).values_list(*columns))
            locked = set(self._lock_rows(Job, [row[0] for row in rows]))
            next_root_by_latest = {}
            for pk, predecessor, status, holds_lane in rows:
                root = root_by_latest[predecessor]
                if pk in locked and status in TERMINAL and not holds_lane:
                    chains[root].append(pk)
                    next_root_by_latest[pk] = root
                else:
                    del chains[root]
            root_by_latest = next_root_by_latest
        return chains

    def _prune_groups(self) -> bool:
        finished = JobGroup.objects.exclude(status__in=OPEN_GROUP_STATUSES).filter(finished_at__lt=self.before)
        group_ids = list(self._next_old(finished, self._last_group).values_list("pk", flat=True)[:GROUP_BATCH_SIZE])
        for group_id in group_ids:
            try:
                self._delete_group(group_id)
            except IntegrityError as error:
                logger.warning("group %s cannot be deleted: %s", group_id, error)
        self._last_group = group_ids[-1] if group_ids else self._last_group
        return bool(group_ids)

    def _delete_group(self, group_id: UUID) -> None:
        with self._transaction():
            if not self._lock_rows(JobGroup, [group_id]):
                return
            # A change of a member locks its group first, so the members need no locks of their own.
            members = list(_all_jobs().filter(group_id=group_id).values_list("pk", "status", "holds_lane"))
            job_ids = [pk for pk, _, _ in members]
            if any(status not in TERMINAL or holds_lane for _, status, holds_lane in members):
                return
            if self._find_retained(job_ids) or find_vetoed(JobGroup, [group_id]):
                return
            if not self.dry_run:
                delete_jobs(job_ids)
                detach_references(JobGroup, [group_id])
                _run_cascades([group_id])
                JobGroup.objects.filter(pk=group_id)._raw_delete(db.alias())
        self.counts.jobs += len(job_ids)
        self.counts.groups += 1

    def _prune_targets(self) -> bool:
        """Delete targets without jobs. The promoter creates the row again if a job comes; a paused one must stay."""
        targets = Target.objects.filter(pk__gt=self._last_target).order_by("pk")
        rows = list(targets.values_list("pk", "paused", "created_at")[:BATCH_SIZE])
        old = [pk for pk, is_paused, created_at in rows if not is_paused and created_at < self.before]
        with self._transaction():
            # The promoter locks a target before it makes a job of it ready: look for jobs under that lock.
            locked = Target.objects.filter(pk__in=self._lock_rows(Target, old), paused=False)
            jobs = Job.objects.filter(tenant=OuterRef("tenant"), target=OuterRef("key"))
            idle = list(locked.filter(~Exists(jobs)).values_list("pk", flat=True))
            if not self.dry_run:
                Target.objects.filter(pk__in=idle)._raw_delete(db.alias())
        self.counts.targets += len(idle)
        self._last_target = rows[-1][0] if rows else self._last_target
        return bool(rows)

    def _compact_day(self) -> bool:
        if self.dry_run:
            self.counts.minutes = rollup_compaction.compactable_rows(self.before).count()
            return False
        compacted = rollup_compaction.compact_oldest_day(self.before)
        self.counts.minutes += compacted
        return bool(compacted)

    def _next_old(self, rows: Any, last: UUID) -> Any:
        """Return the next old rows along the primary key: ids begin with their time."""
        return rows.filter(pk__gt=last, pk__lt=self._horizon).order_by("pk")

    def _transaction(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.dry_run else db.atomic()

    def _lock_rows(self, model: type[Job] | type[JobGroup] | type[Target], ids: Sequence[UUID]) -> list[UUID]:
        """Lock these rows, except in a dry run; return the ids of those that exist and were not locked elsewhere."""
        rows: Any = model._base_manager.using(db.alias()).filter(pk__in=ids).order_by("pk")
        if not self.dry_run:
            rows = rows.select_for_update(skip_locked=True)
        return list(rows.values_list("pk", flat=True))

    def _find_retained(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Return the jobs that must stay: they have a recent event, or a veto."""
        retained: set[UUID] = set()
        for chunk in _chunks(job_ids):
            recent = JobEvent.objects.filter(job_id__in=chunk, at__gte=self.before)
            retained.update(recent.values_list("job_id", flat=True))
            retained |= find_vetoed(Job, chunk)
        return retained


_current_pass: PrunePass | None = None


def run_round() -> object:
    """Run a bounded part of a pass, if RETENTION_DAYS is set; return a summary."""
    global _current_pass
    if conf.RETENTION_DAYS is None:
        _current_pass = None
        return "off"
    _current_pass = _current_pass or PrunePass(timedelta(days=conf.RETENTION_DAYS))
    counts = _current_pass.counts
    if _current_pass.run(ROUND_SEC):
        _current_pass = None
    return str(counts)


def pause_sec() -> float:
    """Return the pause until the next round: an hour, unless the last one did not complete its pass."""
    return BUSY_SEC if _current_pass is not None else IDLE_SEC


def delete_old_activities() -> object:
    """Delete activities that are older than ACTIVITY_RETENTION_DAYS, for about ROUND_SEC; return their number."""
    if conf.ACTIVITY_RETENTION_DAYS is None:
        return "off"
    horizon = min_id_at(clock.now() - timedelta(days=conf.ACTIVITY_RETENTION_DAYS))
    old_ids = Activity.objects.filter(pk__lt=horizon).order_by("pk").values_list("pk", flat=True)
    deleted, deadline = 0, time.monotonic() + ROUND_SEC
    while (ids := list(old_ids[:BATCH_SIZE])) and time.monotonic() < deadline:
        with db.atomic() as connection, allow_pruning(connection):
            deleted += Activity.objects.filter(pk__in=ids)._raw_delete(db.alias())
    return deleted


def delete_jobs(job_ids: Sequence[UUID]) -> None:
    """Delete jobs and the rows that refer to them. `_raw_delete`: `delete` would load and collect each row."""
    using = db.alias()
    with db.atomic() as connection:
        for chunk in _chunks(job_ids):
            _run_cascades(chunk)  # first: other apps may find their rows by a job's events
            with allow_pruning(connection):
                for model in (JobEvent, JobLog, JobRun):
                    rows: Any = model._base_manager.using(using).filter(job_id__in=chunk)
                    rows._raw_delete(using)
            detach_references(Job, chunk)
        for chunk in _chunks(job_ids):  # the foreign key along a chain is checked when the transaction ends
            _all_jobs().filter(pk__in=chunk)._raw_delete(using)


def _chunks(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    return (ids[start : start + BATCH_SIZE] for start in range(0, len(ids), BATCH_SIZE))


def _all_jobs() -> Any:
    return Job.objects.all()


Veto = Callable[[Sequence[UUID]], Iterable[UUID]]
Cascade = Callable[[Sequence[UUID]], None]
_vetoes: list[Veto] = []
_cascades: list[Cascade] = []


def register_veto(veto: Veto) -> Veto:
    """Register a veto: it gets ids of jobs, or of groups, and returns those that must stay. Idempotent."""
    if veto not in _vetoes:
        _vetoes.append(veto)
    return veto


def unregister_veto(veto: Veto) -> None:
    """Remove a veto; one that is not registered is ignored."""
    if veto in _vetoes:
        _vetoes.remove(veto)


def register_cascade(cascade: Cascade) -> Cascade:
    """Register a cascade: it gets the ids of jobs, or of groups, that are being deleted, in the same transaction."""
    if cascade not in _cascades:
        _cascades.append(cascade)
    return cascade


def _run_cascades(ids: Sequence[UUID]) -> None:
    for cascade in _cascades:
        cascade(ids)


def find_vetoed(model: type[models.Model], ids: Sequence[UUID]) -> set[UUID]:
    """Return the ids that a veto names or that rows of other apps refer to: those apps delete or detach their rows."""
    vetoed = set(chain.from_iterable(veto(ids) for veto in _vetoes))
    for relation in _foreign_relations(model):
        if relation.on_delete is not models.SET_NULL:
            vetoed.update(_referring_rows(relation, ids).values_list(relation.field.attname, flat=True))
    return vetoed


def detach_references(model: type[models.Model], ids: Sequence[UUID]) -> None:
    """Set references of other apps to NULL, as Django does for SET_NULL when it deletes row by row."""
    for relation in _foreign_relations(model):
        if relation.on_delete is models.SET_NULL:
            _referring_rows(relation, ids).update(**{relation.field.name: None})


def _foreign_relations(model: type[models.Model]) -> Iterator[Any]:
    """Yield foreign keys of other apps to this model, those behind many-to-many fields too."""
    for field in model._meta.get_fields(include_hidden=True):
        is_reverse = field.auto_created and not field.concrete and (field.one_to_one or field.one_to_many)
        if is_reverse and field.related_model._meta.app_label != model._meta.app_label:  # type: ignore[union-attr]
            yield field


def _referring_rows(relation: Any, ids: Sequence[UUID]) -> Any:
    return relation.related_model._base_manager.using(db.alias()).filter(**{f"{relation.field.name}__in": ids})
