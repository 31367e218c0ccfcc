"""The rows a claim locks: one per limit that the settings or an operator set."""

from __future__ import annotations

from functools import cache

from django.db.models import Q

from jobs import db
from jobs.conf import conf
from jobs.engine.sql import Statement, compiled, dialect
from jobs.models import ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import Flow, InUse, Limit


def configured() -> dict[tuple[str, str], int | None]:
    """What the settings say, by scope and key."""
    return {("global", ""): None} | {(scope, key): most for scope, key, most in conf.LIMITS}


def sync() -> None:
    """Give every limit of the settings its row; an operator's override keeps its own maximum."""
    said = configured()
    with db.atomic():
        rows = ConcurrencyLimit.objects.using(db.alias())
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


def locked(*, all_of_them: bool = False) -> tuple[list[Limit], InUse]:
    """The limits in force (or all), locked until the transaction ends, and what is active, counted after the lock.

    Who counts next, counts after us.
    """
    connection = db.connection()
    rows, active = dialect(connection).execute_together(connection, _locking(all_of_them), (_ACTIVE, None))
    in_force = [Limit(scope, key, most, bool(paused)) for scope, key, most, paused in rows]
    return in_force, InUse([(Flow(*row[:4]), row[4]) for row in active])


@cache
def _locking(all_of_them: bool) -> Statement:
    limits = ConcurrencyLimit.objects.using(db.alias())
    in_force = limits.all() if all_of_them else limits.filter(Q(max__isnull=False) | Q(paused=True))
    rows = in_force.select_for_update(no_key=True).order_by("pk").values_list("scope", "key", "max", "paused")
    return compiled(rows)


# Active jobs, and leases of direct executions.
_ACTIVE = """
    SELECT tenant, job_type, resource, addon_id, count(*) FROM (
        SELECT tenant, job_type, resource, addon_id FROM jobscheduler_job WHERE status IN ('DISPATCHING', 'RUNNING')
        UNION ALL
        SELECT tenant, job_type, resource, addon_id FROM jobscheduler_lease
        WHERE ended_at IS NULL AND granted_at IS NOT NULL
    ) active GROUP BY tenant, job_type, resource, addon_id
"""
