"""The rows a claim locks: one per limit that the settings or an operator set; and what is at work under them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from django.db.models import Q

from jobs import db
from jobs.conf import conf
from jobs.engine import contracts
from jobs.engine.sql import Statement, compiled, dialect
from jobs.models import ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import Flow, InUse, Limit, Limits

logger = logging.getLogger("jobs.engine.limits")


class Survey(NamedTuple):
    """The limits in force (or all), what is active, and the flows of direct calls that wait for the next slot."""

    limits: list[Limit]
    in_use: InUse
    waiting: list[Flow]


def has_builtin_policy() -> bool:
    """Only the built-in policy is known to say no more than the limits do; any other is asked about every job."""
    return type(conf.policy("CONCURRENCY_POLICY")) is Limits


def configured() -> dict[tuple[str, str], int | None]:
    """What the settings say, by scope and key."""
    return {("global", ""): None} | {(scope, key): most for scope, key, most in conf.LIMITS}


def sync() -> None:
    """Give every limit of the settings its row; an operator's override keeps its own maximum."""
    said = configured()
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


def ensure() -> None:
    """Where no worker has ever started, nobody has made the rows yet."""
    if not ConcurrencyLimit.objects.filter(scope=LimitScope.GLOBAL).exists():
        sync()


def are_in_force() -> bool:
    """A look without a lock: an idle worker that knows of none asks this much."""
    return ConcurrencyLimit.objects.filter(Q(max__isnull=False) | Q(paused=True)).exists()


def locked(*, all_of_them: bool = False) -> tuple[list[Limit], InUse]:
    """The limits in force (or all), locked until the transaction ends, and what is active, counted after the lock.

    Who counts next, counts after us. A limit under which a direct call waits has no room for the queue.
    """
    found = survey(all_of_them=all_of_them)
    return (_shut(found, all_of_them) if found.waiting else found.limits), found.in_use


def survey(*, lock: bool = True, all_of_them: bool = False) -> Survey:
    """As `locked`, with the direct calls that wait by themselves. Without the lock it is only a look."""
    connection = db.connection()
    asked = (_locking if lock else _looking)(all_of_them), _at_work(connection.vendor)
    rows, counted = dialect(connection).execute_together(connection, *asked)
    if lock and any(row[OVER] for row in counted) and contracts.end_dead():
        (counted,) = dialect(connection).execute_together(connection, asked[1])
    limits = [Limit(scope, key, most, bool(paused)) for scope, key, most, paused in rows]
    active = [(Flow(*row[:4]), row[COUNT]) for row in counted if row[WHAT] == "runs"]
    return Survey(limits, InUse(active), [Flow(*row[:4]) for row in counted if row[WHAT] == "waits"])


def _shut(found: Survey, of_another_policy: bool) -> list[Limit]:
    """The limits as the queue sees them while direct calls wait. Another policy may have limits that no row tells of:
    there the types themselves are shut, too."""
    limits = [
        replace(limit, reserved=True) if limit.max is not None and any(map(limit.names, found.waiting)) else limit
        for limit in found.limits
    ]
    types = sorted({flow.job_type for flow in found.waiting}) if of_another_policy else []
    return [*limits, *(Limit("job_type", each, None, reserved=True) for each in types)]


def most_at_once(types: Sequence[str], resources: Sequence[str] | None, tenant: str | None) -> tuple[int, Limit] | None:
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
    bound = most_at_once(serves.types, serves.resources, serves.tenant)
    if bound is None or bound[0] >= slots:
        return
    most, limit = bound
    place = f"{limit.scope} {limit.key}".strip()
    logger.warning(
        "%d slots, but the limits let %d of its jobs run at once (%s: %d). Raise it with `manage.py limits set %s %d`,"
        " in the console, or in the setting LIMITS.",
        *(slots, most, place, limit.max, place, slots),
    )


@cache
def _locking(all_of_them: bool) -> Statement:
    return compiled(_in_force(all_of_them).select_for_update(no_key=True))


@cache
def _looking(all_of_them: bool) -> Statement:
    return compiled(_in_force(all_of_them))


def _in_force(all_of_them: bool) -> Any:
    limits = ConcurrencyLimit.objects.all()
    in_force = limits.all() if all_of_them else limits.filter(Q(max__isnull=False) | Q(paused=True))
    return in_force.order_by("pk").values_list("scope", "key", "max", "paused")


WHAT, OVER, COUNT = 4, 5, 6
_NOW = {"postgresql": "statement_timestamp()", "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now')"}


@cache
def _at_work(vendor: str) -> Statement:
    """Active jobs, and direct calls that run or wait; of these also whether their lease is over."""
    sql = f"""
    SELECT tenant, job_type, resource, addon_id, what, late, count(*) FROM (
        SELECT tenant, job_type, resource, addon_id, 'runs' AS what, false AS late FROM jobscheduler_job
        WHERE status IN ('DISPATCHING', 'RUNNING')
        UNION ALL
        SELECT tenant, job_type, resource, addon_id, CASE WHEN granted_at IS NULL THEN 'waits' ELSE 'runs' END,
               expires_at < {_NOW[vendor]}
        FROM jobscheduler_lease WHERE ended_at IS NULL AND kind = 'DIRECT'
    ) active GROUP BY tenant, job_type, resource, addon_id, what, late
    """  # noqa: S608 — our own words
    return sql, None
