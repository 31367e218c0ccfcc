"""Targets as an operator handles them: a side door beside `services` for the commands, the console and the API."""

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
from jobs.engine.transitions import mark_lanes
from jobs.errors import InvalidInput, NotFound
from jobs.models import Job, LaneMark, Target
from jobs.models.expressions import sql_literals
from jobs.stats import queries
from jobs.validation import fields

logger = logging.getLogger("jobs.services.targets")
BATCH_SIZE = 1000


@dataclass(frozen=True)
class TargetState:
    """A target and what goes on in its lane; `holder` is the job that has the lane to itself."""

    target: Target
    holder: Job | None
    queued: int
    oldest_queued_at: datetime | None

    @property
    def blocked_by(self) -> Job | None:
        """The holder, if only a person can mend it."""
        return self.holder if self.holder is not None and self.holder.blocks_target else None


def pause(key: str, *, tenant: str = "default", reason: str = "", actor: Actor = PYTHON) -> Target:
    """Nothing of this target starts until it is unpaused. It need not have been used before."""
    why = fields.parse_reason(reason)
    with db.atomic():
        target = _lock_target(key, tenant, make=True)
        changes: dict[str, Any] = {"reason": why} if why else {}
        if not target.paused:
            changes = {"paused": True, "paused_by": actor.name, "paused_at": Now(), "reason": why}
        return _apply_changes(target, changes, actor)


def unpause(key: str, *, tenant: str = "default", actor: Actor = PYTHON) -> Target:
    with db.atomic():
        target = _lock_target(key, tenant, make=False)
        changes = {"paused": False, "paused_by": "", "paused_at": None, "reason": ""} if target.paused else {}
        return _apply_changes(target, changes, actor)


def filter_by_tenant(tenant: str | None) -> QuerySet[Target]:
    """The targets of one tenant, or all, in the order of their names."""
    found = Target.objects.order_by("tenant", "key")
    return found if tenant is None else found.filter(tenant=tenant)


def find(key: str, *, tenant: str = "default") -> Target:
    """A target that was paused or used. One whose row is still on its way is shown as it will be."""
    try:
        lane = ids.derive_lane_id(fields.parse_tenant(tenant), fields.parse_target(key))
    except InvalidInput:  # a key that cannot be one is the key of no target
        raise _build_not_found(key, tenant) from None
    target = filter_by_tenant(tenant).filter(pk=lane).first()
    if target is None and not Job.objects.filter(target=key, tenant=tenant).exists():
        raise _build_not_found(key, tenant)
    return target or Target(id=lane, tenant=tenant, key=key)


def create_missing_targets() -> None:
    """Give each lane that has jobs its row, as the promoter will: who looks sooner shall see it, too."""
    known = Target.objects.filter(pk=OuterRef("lane_id"))
    marks = LaneMark.objects.filter(~Exists(known)).order_by("lane_id")
    new = list(marks.values_list("lane_id", flat=True).distinct()[:BATCH_SIZE])
    if not new:
        return
    waiting = Job.objects.filter(lane_id__in=new, gate__in=sql_literals(queries.LANE_GATES)).order_by()
    rows = sorted(waiting.values_list("lane_id", "tenant", "target").distinct())
    targets = [Target(id=lane, tenant=tenant, key=key or "") for lane, tenant, key in rows]
    with db.atomic():
        Target.objects.bulk_create(targets, ignore_conflicts=True)


def get_states(targets: Sequence[Target]) -> list[TargetState]:
    """What goes on in each of these lanes, in two queries."""
    lanes = [target.pk for target in targets]
    jobs = Job.objects.filter(lane_id__in=lanes).defer("params", "checkpoint")
    holders: dict[UUID, Job] = {job.lane_id: job for job in jobs.filter(holds_lane=True) if job.lane_id}
    waiting = jobs.filter(gate__in=sql_literals(queries.LANE_GATES)).order_by().values_list("lane_id")
    counts = {lane: (n, oldest) for lane, n, oldest in waiting.annotate(Count("pk"), Min("created_at"))}
    return [TargetState(each, holders.get(each.pk), *counts.get(each.pk, (0, None))) for each in targets]


def _lock_target(key: str, tenant: str, *, make: bool) -> Target:
    key, tenant = fields.parse_target(key), fields.parse_tenant(tenant)
    targets = Target.objects.all()
    if make:
        targets.bulk_create([Target(id=ids.derive_lane_id(tenant, key), tenant=tenant, key=key)], ignore_conflicts=True)
    target = targets.select_for_update(no_key=True).filter(pk=ids.derive_lane_id(tenant, key)).first()
    if target is None:
        raise _build_not_found(key, tenant)
    return target


def _build_not_found(key: str, tenant: str) -> NotFound:
    return NotFound(_("There is no target “%(key)s” in tenant %(tenant)s.") % {"key": key, "tenant": tenant})


def _apply_changes(target: Target, changes: dict[str, Any], actor: Actor) -> Target:
    if not changes:
        return target
    Target.objects.filter(pk=target.pk).update(**changes)
    mark_lanes(target.pk)
    target.refresh_from_db(using=db.alias())
    action = "paused" if target.paused else "unpaused"
    logger.info("target %s of tenant %s %s by %s", target.key, target.tenant, action, actor.name or actor.kind)
    return target
