"""The rows a claim locks: one per limit that the settings or an operator set; and what is at work under them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django.db.models import Q

from jobs import db
from jobs.conf import conf
from jobs.engine.slots import leases
from jobs.engine.sql.limits import ActiveRow, count_active, read_limits
from jobs.models import ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import Flow, InUse, Limit, Limits

logger = logging.getLogger("jobs.engine.limits")


class LimitUsage(NamedTuple):
    """The limits in force (or all), what is active, and the flows of direct calls that wait for the next slot."""

    limits: list[Limit]
    in_use: InUse
    waiting: list[Flow]


def has_builtin_policy() -> bool:
    """Only the built-in policy is known to say no more than the limits do; any other is asked about every job."""
    return type(conf.policy("CONCURRENCY_POLICY")) is Limits


def read_configured() -> dict[tuple[str, str], int | None]:
    """What the settings say, by scope and key."""
    return {("global", ""): None} | {(scope, key): most for scope, key, most in conf.LIMITS}


def sync_limits() -> None:
    """Give every limit of the settings its row; an operator's override keeps its own maximum."""
    said = read_configured()
    with db.atomic():
        rows = ConcurrencyLimit.objects.all()
        rows.bulk_create(
            [
                ConcurrencyLimit(scope=scope, key=key, max=most, overridden=False)
                for (scope, key), most in sorted(said.items())
            ],
            ignore_conflicts=True,
        )
        for row in rows.select_for_update().filter(overridden=False).order_by("pk"):
            most = said.get((row.scope, row.key))
            if most is None and not row.paused and row.scope != LimitScope.GLOBAL:
                row.delete()
            elif row.max != most:
                rows.filter(pk=row.pk).update(max=most)


def ensure_limits() -> None:
    """Where no worker has ever started, nobody has made the rows yet."""
    if not ConcurrencyLimit.objects.filter(scope=LimitScope.GLOBAL).exists():
        sync_limits()


def has_limits_in_force() -> bool:
    """A look without a lock: an idle worker that knows of none asks this much."""
    return ConcurrencyLimit.objects.filter(Q(max__isnull=False) | Q(paused=True)).exists()


def lock_limits() -> tuple[list[Limit], InUse]:
    """Lock the limits in force until the transaction ends, then count what is active.

    Whoever counts next counts after us. A limit under which a direct call waits has no room for the queue. A custom
    policy gets every limit, in force or not.
    """
    found = read_usage()
    return (_reserve_for_waiting(found) if found.waiting else found.limits), found.in_use


def read_usage(*, lock: bool = True) -> LimitUsage:
    """Read limits and what is active, with the waiting direct calls by themselves. Without the lock: only a look."""
    connection = db.connection()
    rows, active = read_limits(connection, all_rows=not has_builtin_policy(), lock=lock)
    if lock and any(row.expired for row in active) and leases.end_dead_leases():
        active = count_active(connection)
    limits = [Limit(row.scope, row.key, row.max, bool(row.paused)) for row in rows]
    running = [(_to_flow(row), row.active) for row in active if not row.waits]
    return LimitUsage(limits, InUse(running), [_to_flow(row) for row in active if row.waits])


def _to_flow(row: ActiveRow) -> Flow:
    return Flow(row.tenant, row.job_type, row.resource, row.addon_id)


def _reserve_for_waiting(found: LimitUsage) -> list[Limit]:
    """Return the limits as the queue sees them while direct calls wait.

    A custom policy may have limits without a row: there the job types themselves are closed, too.
    """
    limits = [
        replace(limit, reserved=True) if limit.max is not None and any(map(limit.names, found.waiting)) else limit
        for limit in found.limits
    ]
    types = [] if has_builtin_policy() else sorted({flow.job_type for flow in found.waiting})
    return [*limits, *(Limit("job_type", job_type, None, reserved=True) for job_type in types)]


def find_slot_bound(
    types: Sequence[str], resources: Sequence[str] | None, tenant: str | None
) -> tuple[int, Limit] | None:
    """How many jobs of these the limits let run at once, and the narrowest limit; None: any number."""
    rows = ConcurrencyLimit.objects.filter(max__isnull=False)
    known = {(row.scope, row.key): Limit(row.scope, row.key, row.max) for row in rows}
    served = {"global": [""], "job_type": types, "resource": resources, "tenant": tenant and [tenant]}
    bounds: list[tuple[int, Limit]] = []
    for scope, keys in served.items():
        found = [known.get((scope, key)) for key in keys or ()]
        if found and all(found):
            limits = [limit for limit in found if limit is not None]
            bounds.append((sum(limit.max or 0 for limit in limits), limits[0]))
    return min(bounds, key=lambda bound: bound[0], default=None)


def warn_of_idle_slots(slots: int, serves: Any) -> None:
    """Say at the start of a worker, once, that it has more slots than the limits will ever fill."""
    bound = find_slot_bound(serves.types, serves.resources, serves.tenant)
    if bound is None or bound[0] >= slots:
        return
    most, limit = bound
    place = f"{limit.scope} {limit.key}".strip()
    logger.warning(
        "%d slots, but the limits let %d of its jobs run at once (%s: %d). Raise it with `manage.py limits set %s %d`,"
        " in the console, or in the setting LIMITS.",
        *(slots, most, place, limit.max, place, slots),
    )
