"""Targets: find, pause and unpause them, and count their waiting jobs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, Min, OuterRef, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db, ids
from jobs.actors import PYTHON, Actor
from jobs.engine.promoter import mark_dirty
from jobs.errors import InvalidInput, NotFound
from jobs.models import Action, Job, LaneMark, Target
from jobs.services import activity
from jobs.validation import fields

logger = logging.getLogger("jobs.services.targets")
BATCH_SIZE = 1000


@dataclass(frozen=True)
class TargetState:
    """A target, the job that occupies it (`holder`), and its waiting jobs."""

    target: Target
    holder: Job | None
    queued: int
    oldest_queued_at: datetime | None

    @property
    def blocked_by(self) -> Job | None:
        """The holder, if only an operator can unblock the target."""
        return self.holder if self.holder is not None and self.holder.blocks_target else None


def pause(key: str, *, tenant: str = "default", reason: str = "", actor: Actor = PYTHON) -> Target:
    """Start no more jobs of this target until it is unpaused. The target need not exist yet."""
    reason = fields.parse_reason(reason)
    with db.atomic():
        target = _lock_target(key, tenant, create=True)
        changes: dict[str, Any] = {"reason": reason} if reason else {}
        if not target.paused:
            changes = {"paused": True, "paused_by": actor.name, "paused_at": Now(), "reason": reason}
        return _apply_changes(target, changes, actor, reason)


def unpause(key: str, *, tenant: str = "default", actor: Actor = PYTHON) -> Target:
    with db.atomic():
        target = _lock_target(key, tenant, create=False)
        changes = {"paused": False, "paused_by": "", "paused_at": None, "reason": ""} if target.paused else {}
        return _apply_changes(target, changes, actor)


def filter_by_tenant(tenant: str | None) -> QuerySet[Target]:
    """Return the targets of one tenant, or of all, ordered by name."""
    rows = Target.objects.order_by("tenant", "key")
    return rows if tenant is None else rows.filter(tenant=tenant)


def find(key: str, *, tenant: str = "default") -> Target:
    """Return a target that was paused or used; an unsaved one if the promoter has not created its row yet."""
    try:
        target_id = ids.derive_lane_id(fields.parse_tenant(tenant), fields.parse_target(key))
    except InvalidInput:  # no target can have this key
        raise _build_not_found(key, tenant) from None
    target = filter_by_tenant(tenant).filter(pk=target_id).first()
    if target is None and not Job.objects.filter(target=key, tenant=tenant).exists():
        raise _build_not_found(key, tenant)
    return target or Target(id=target_id, tenant=tenant, key=key)


def create_missing_targets() -> None:
    """Create the rows of targets that have jobs, before the promoter does: lists are complete at once."""
    existing = Target.objects.filter(pk=OuterRef("lane_id"))
    marks = LaneMark.objects.filter(~Exists(existing)).order_by("lane_id")
    missing_ids = list(marks.values_list("lane_id", flat=True).distinct()[:BATCH_SIZE])
    if not missing_ids:
        return
    waiting = Job.objects.in_lanes().filter(lane_id__in=missing_ids).order_by()
    rows = sorted(waiting.values_list("lane_id", "tenant", "target").distinct())
    targets = [Target(id=target_id, tenant=tenant, key=key or "") for target_id, tenant, key in rows]
    with db.atomic():
        Target.objects.bulk_create(targets, ignore_conflicts=True)


def get_states(targets: Sequence[Target]) -> list[TargetState]:
    """Return the holder and the waiting jobs of each target, in two queries."""
    target_ids = [target.pk for target in targets]
    jobs = Job.objects.filter(lane_id__in=target_ids).defer("params", "checkpoint")
    holders: dict[UUID, Job] = {job.lane_id: job for job in jobs.filter(holds_lane=True) if job.lane_id}
    waiting = jobs.in_lanes().order_by().values_list("lane_id")
    rows = waiting.annotate(Count("pk"), Min("created_at"))
    counts = {target_id: (count, oldest) for target_id, count, oldest in rows}
    return [TargetState(target, holders.get(target.pk), *counts.get(target.pk, (0, None))) for target in targets]


def _lock_target(key: str, tenant: str, *, create: bool) -> Target:
    key, tenant = fields.parse_target(key), fields.parse_tenant(tenant)
    targets = Target.objects.all()
    if create:
        targets.bulk_create([Target(id=ids.derive_lane_id(tenant, key), tenant=tenant, key=key)], ignore_conflicts=True)
    target = targets.select_for_update(no_key=True).filter(pk=ids.derive_lane_id(tenant, key)).first()
    if target is None:
        raise _build_not_found(key, tenant)
    return target


def _build_not_found(key: str, tenant: str) -> NotFound:
    return NotFound(_("There is no target “%(key)s” in tenant %(tenant)s.") % {"key": key, "tenant": tenant})


def _apply_changes(target: Target, changes: dict[str, Any], actor: Actor, reason: str = "") -> Target:
    """Write the changes of a locked target and record them; a new reason of a paused target counts as a pause."""
    names = ("paused",) if "paused" in changes else ("reason",)
    before = {name: getattr(target, name) for name in names}
    if not changes or all(before.get(name) == value for name, value in changes.items()):
        return target
    Target.objects.filter(pk=target.pk).update(**changes)
    mark_dirty(target.pk)
    target.refresh_from_db(using=db.alias())
    after = {name: getattr(target, name) for name in names}
    changed = activity.ChangedObject(target.key, target.key, target.tenant)
    activity.record_changes(Action.TARGET_PAUSE, changed, before, after, actor=actor, reason=reason)
    action = "paused" if target.paused else "unpaused"
    logger.info("target %s of tenant %s %s by %s", target.key, target.tenant, action, actor)
    return target
