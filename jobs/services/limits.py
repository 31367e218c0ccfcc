"""Limits as an operator handles them: a side door beside `services` for the commands, the console and the API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.engine import notifications
from jobs.engine.selection.limits import configured
from jobs.errors import Conflict, InvalidInput
from jobs.models import ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import InUse, Limit
from jobs.stats.queries import count_in_use
from jobs.validation import fields as validation

logger = logging.getLogger("jobs.services.limits")
MAXIMUM_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class LimitState:
    """A limit in force, whether or not a worker has given it a row yet. `max` None: unlimited."""

    scope: str
    key: str
    max: int | None
    in_use: int
    paused: bool = False
    paused_by: str = ""
    paused_at: datetime | None = None
    reason: str = ""
    source: str = "settings"


def list_limits() -> list[LimitState]:
    """Every limit that the settings or an operator set, by scope and key."""
    active = count_in_use()
    rows = ConcurrencyLimit.objects.all()
    found = {(row.scope, row.key): _build_state(row, active) for row in rows}
    for (scope, key), most in configured().items():
        found.setdefault((scope, key), LimitState(scope, key, most, active.of(Limit(scope, key, most))))
    order = list(LimitScope.values)
    return [found[place] for place in sorted(found, key=lambda place: (order.index(place[0]), place[1]))]


def set_maximum(
    scope: str, key: str = "", *, maximum: int | None, reason: str = "", actor: Actor = PYTHON
) -> LimitState:
    """Override what the settings say; None is unlimited."""
    return put({"scope": scope, "key": key, "max": maximum, "reason": reason}, actor=actor)


def reset(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Drop the override: the maximum is what the settings say. A pause stays until it is lifted."""
    return put({"scope": scope, "key": key, "reset": True, "reason": reason}, actor=actor)


def pause(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Nothing more starts under this limit until it is unpaused; what runs goes on."""
    return put({"scope": scope, "key": key, "paused": True, "reason": reason}, actor=actor)


def unpause(scope: str, key: str = "", *, actor: Actor = PYTHON) -> LimitState:
    return put({"scope": scope, "key": key, "paused": False}, actor=actor)


def put(fields: Mapping[str, Any], *, actor: Actor = PYTHON) -> LimitState:
    """Change one limit: `scope`, `key`, and some of `max` (None: unlimited), `paused` and `reason`; what is not given
    stays as it is. Or `reset`, which stands alone. A row that says nothing of its own afterwards is removed."""
    scope, key = parse_scope_and_key(fields.get("scope"), fields.get("key") or "")
    paused = None if fields.get("paused") is None else validation.parse_boolean(fields["paused"], "paused")
    if is_reset := fields.get("reset") is not None and validation.parse_boolean(fields["reset"], "reset"):
        if "max" in fields or paused is not None:
            raise InvalidInput("reset", _("stands alone, without max or paused"))
    elif "max" not in fields and paused is None:
        raise InvalidInput([], _("say max, paused or reset"), "missing")
    maximum = None if fields.get("max") is None else validation.parse_integer(fields["max"], "max", 1, MAXIMUM_LIMIT)
    reason, configured_max = validation.parse_reason(fields.get("reason")), conf.LIMITS.get_max(scope, key)
    with db.atomic():
        rows = ConcurrencyLimit.objects.all()
        new = ConcurrencyLimit(scope=scope, key=key, max=configured_max, overridden=False)
        rows.bulk_create([new], ignore_conflicts=True)
        # Locked: a claim that counts under this limit waits.
        row = rows.select_for_update(no_key=True).filter(scope=scope, key=key).first()
        if row is None:
            raise Conflict(_("Somebody else is changing this limit; try again."))
        row.reason = reason or row.reason
        if is_reset:
            row.max, row.overridden = configured_max, False
        if "max" in fields:
            row.max, row.overridden = maximum, True
        if paused is False:
            row.paused, row.paused_by, row.paused_at, row.reason = False, "", None, ""
        elif paused and not row.paused:
            row.paused, row.paused_by, row.paused_at = True, actor.name, Now()
        row.save(using=db.alias())
        if not row.overridden and not row.paused and configured_max is None:
            row.delete(using=db.alias())
        notifications.notify(notifications.READY)
    value = f"max {row.max or 'unlimited'}{', paused' if row.paused else ''}"
    logger.info("limit %s set to %s by %s", row, value, actor.name or actor.kind)
    return get_state(scope, key)


def get_state(scope: str, key: str = "") -> LimitState:
    """One limit as it is now; unlimited if nobody set it."""
    active, most = count_in_use(), conf.LIMITS.get_max(scope, key)
    row = ConcurrencyLimit.objects.filter(scope=scope, key=key).first()
    return _build_state(row, active) if row else LimitState(scope, key, most, active.of(Limit(scope, key, most)))


def parse_scope_and_key(scope: Any, key: Any) -> tuple[str, str]:
    """Scope and key through the gate; the global limit has no key, all others do."""
    if scope not in LimitScope.values:
        raise InvalidInput("scope", _("must be one of %s") % ", ".join(LimitScope.values), "enum")
    if scope == LimitScope.GLOBAL:
        if key:
            raise InvalidInput("key", _("the global limit has no key"))
        return scope, ""
    gate = validation.parse_tenant if scope == LimitScope.TENANT else validation.parse_identifier
    return scope, gate(key, "key")


def _build_state(row: ConcurrencyLimit, active: InUse) -> LimitState:
    used = active.of(Limit(row.scope, row.key, row.max))
    source = "override" if row.overridden else "settings"
    pause = (row.paused, row.paused_by, row.paused_at, row.reason)
    return LimitState(row.scope, row.key, row.max, used, *pause, source)
