"""Read and lock the limits that settings and operators set, and count the active jobs and calls under them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jobs import db
from jobs.conf import UNLIMITED, LimitValues, conf
from jobs.engine.selection.buckets import BucketRound, delete_spends
from jobs.engine.slots import leases
from jobs.engine.sql.limits import count_active, read_limits
from jobs.models import ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import NO_BUCKETS, Flow, InUse, Limit, Limits

logger = logging.getLogger("jobs.engine.limits")


class LimitUsage(NamedTuple):
    """The limits in force (or all), the active counts, and the flows of direct calls that wait for the next slot.

    `buckets` is None if no limit has a rate.
    """

    limits: list[Limit]
    in_use: InUse
    waiting: list[Flow]
    buckets: BucketRound | None = None


def has_builtin_policy() -> bool:
    """Return whether the concurrency policy is the built-in one. Any other policy has to decide about every job."""
    return type(conf.policy("CONCURRENCY_POLICY")) is Limits


def read_configured() -> dict[tuple[str, str], LimitValues]:
    """Return the values of each limit in the settings, by scope and key; the global one always."""
    return {("global", ""): UNLIMITED} | dict(conf.LIMITS.items())


def sync_limits() -> None:
    """Create or update the row of every limit in the settings; an operator's override keeps its own values."""
    configured = read_configured()
    with db.atomic():
        rows = ConcurrencyLimit.objects.all()
        rows.bulk_create(
            [
                ConcurrencyLimit(scope=scope, key=key, **values._asdict(), overridden=False)
                for (scope, key), values in sorted(configured.items())
            ],
            ignore_conflicts=True,
        )
        for row in rows.select_for_update().filter(overridden=False).order_by("pk"):
            values = configured.get((row.scope, row.key), UNLIMITED)
            if values == UNLIMITED and not row.paused and row.scope != LimitScope.GLOBAL:
                row.delete()
            elif row.values != values:
                rows.filter(pk=row.pk).update(**values._asdict())
        delete_spends()


def ensure_limits() -> None:
    """Create the rows if no worker has started yet."""
    if not ConcurrencyLimit.objects.filter(scope=LimitScope.GLOBAL).exists():
        sync_limits()


def has_limits_in_force() -> bool:
    """Tell, without a lock, whether some limit has a maximum or a rate, or is paused."""
    return ConcurrencyLimit.objects.in_force().exists()


def lock_limits() -> LimitUsage:
    """Lock the limits in force until the transaction ends, then count the active jobs and calls.

    The next transaction counts after this one. A limit under which a direct call waits has no room for queued jobs. A
    custom policy gets every limit, in force or not.
    """
    usage = read_usage()
    return usage._replace(limits=_reserve_for_waiting(usage)) if usage.waiting else usage


def read_usage(*, lock: bool = True) -> LimitUsage:
    """Read the limits, the active counts and the waiting direct calls; with `lock`, under the locks of the limits."""
    connection = db.connection()
    rows, active = read_limits(connection, all_rows=not has_builtin_policy(), lock=lock)
    if lock and any(row.expired for row in active) and leases.end_dead_leases():
        active = count_active(connection)
    buckets = BucketRound(connection, rows) if any(row.rate or row.token_rate for row in rows) else None
    limits = [
        Limit(row.scope, row.key, row.max, bool(row.paused), buckets=NO_BUCKETS if buckets is None else buckets.of(row))
        for row in rows
    ]
    running = [(Flow.of(row), row.active) for row in active if not row.waits]
    return LimitUsage(limits, InUse(running), [Flow.of(row) for row in active if row.waits], buckets)


def _reserve_for_waiting(usage: LimitUsage) -> list[Limit]:
    """Return the limits for queued jobs while direct calls wait.

    A custom policy may have limits without a row: then the job types of the waiting calls are reserved, too.
    """
    limits = [
        replace(limit, reserved=True) if limit.is_in_force and any(map(limit.names, usage.waiting)) else limit
        for limit in usage.limits
    ]
    types = [] if has_builtin_policy() else sorted({flow.job_type for flow in usage.waiting})
    return [*limits, *(Limit("job_type", job_type, None, reserved=True) for job_type in types)]


class SlotBound(NamedTuple):
    """How many jobs can run at the same time, and the limit that is the reason."""

    slots: int
    limit: Limit


def find_slot_bound(types: Sequence[str], resources: Sequence[str] | None, tenant: str | None) -> SlotBound | None:
    """Return how many of these jobs can run at the same time, and the narrowest limit; None if there is no bound."""
    rows = ConcurrencyLimit.objects.filter(max__isnull=False)
    known = {(row.scope, row.key): Limit(row.scope, row.key, row.max) for row in rows}
    served = {"global": [""], "job_type": types, "resource": resources, "tenant": tenant and [tenant]}
    bounds: list[SlotBound] = []
    for scope, keys in served.items():
        candidates = [known.get((scope, key)) for key in keys or ()]
        if candidates and all(candidates):
            limits = [limit for limit in candidates if limit is not None]
            bounds.append(SlotBound(sum(limit.max or 0 for limit in limits), limits[0]))
    return min(bounds, key=lambda bound: bound.slots, default=None)


def warn_of_idle_slots(slots: int, served_jobs: Any) -> None:
    """Log at the start of a worker that it has more slots than the limits can fill."""
    bound = find_slot_bound(served_jobs.types, served_jobs.resources, served_jobs.tenant)
    if bound is None or bound.slots >= slots:
        return
    usable, limit = bound
    name = f"{limit.scope} {limit.key}".strip()
    logger.warning(
        "this worker has %d slots, but the limits let %d of its jobs run at once (%s: %d). Raise it with"
        " `manage.py limits set %s %d`, in the console, or in the setting LIMITS.",
        *(slots, usable, name, limit.max, name, slots),
    )
