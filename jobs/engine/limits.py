"""The rows a claim locks: one per limit that the settings or an operator set."""

from __future__ import annotations

from django.db.models import Q

from jobs import db
from jobs.conf import conf
from jobs.models import ConcurrencyLimit
from jobs.policies.concurrency import Limit


def configured() -> dict[tuple[str, str], int]:
    """What the settings say, by scope and key."""
    return {(scope, key): most for scope, key, most in conf.LIMITS}


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
            if most is None and not row.paused:
                row.delete()
            elif row.max != most:
                rows.filter(pk=row.pk).update(max=most)


def locked() -> list[Limit]:
    """All limits in force, locked until the transaction ends: who counts next, counts after us."""
    in_force = ConcurrencyLimit.objects.using(db.alias()).filter(Q(max__isnull=False) | Q(paused=True))
    rows = in_force.select_for_update(no_key=True).order_by("pk").values_list("scope", "key", "max", "paused")
    return [Limit(*row) for row in rows]
