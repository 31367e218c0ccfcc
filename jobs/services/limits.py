"""Concurrency limits: list, change, pause and reset them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db, notifications
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.engine.selection.limits import read_configured
from jobs.errors import Conflict, InvalidInput
from jobs.models import Action, ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import InUse, Limit
from jobs.services import activity
from jobs.stats import live_counts
from jobs.stats.queries import count_in_use
from jobs.validation import fields as validation

logger = logging.getLogger("jobs.services.limits")
MAXIMUM_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class LimitState:
    """A limit, with or without a row in the database. `max` None: unlimited."""

    scope: str
    key: str
    max: int | None
    in_use: int | None  # None: not shown
    paused: bool = False
    paused_by: str = ""
    paused_at: datetime | None = None
    reason: str = ""
    source: str = "settings"


def list_limits() -> list[LimitState]:
    """List the limits of the settings and of operators, by scope and key."""
    in_use = count_in_use()
    rows = ConcurrencyLimit.objects.all()
    states = {(row.scope, row.key): _build_state(row, in_use) for row in rows}
    for (scope, key), maximum in read_configured().items():
        state = LimitState(scope, key, maximum, in_use.of(Limit(scope, key, maximum)))
        states.setdefault((scope, key), state)
    scopes = list(LimitScope.values)
    return sorted(states.values(), key=lambda state: (scopes.index(state.scope), state.key))


def list_limits_of_tenant(tenant: str) -> list[LimitState]:
    """List the limits that a tenant's unfinished jobs are under, the tenant's own, and the global one.

    The use of the global limit is left out, as well as who paused a limit that tenants share, and why.
    """
    keys = {(LimitScope.GLOBAL, ""), (LimitScope.TENANT, tenant)}
    for count in live_counts.count_jobs(tenant).live:
        keys |= {(LimitScope.JOB_TYPE, count.job_type), (LimitScope.RESOURCE, count.resource)}
        keys.add((LimitScope.ADDON, count.addon_id))
    states = [state for state in list_limits() if (state.scope, state.key) in keys]
    return [state if state.scope == LimitScope.TENANT else _without_other_tenants(state) for state in states]


def set_maximum(
    scope: str, key: str = "", *, maximum: int | None, reason: str = "", actor: Actor = PYTHON
) -> LimitState:
    """Override the maximum of the settings; None: unlimited."""
    return put({"scope": scope, "key": key, "max": maximum, "reason": reason}, actor=actor)


def reset(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Remove the override, so that the maximum of the settings applies. A pause stays."""
    return put({"scope": scope, "key": key, "reset": True, "reason": reason}, actor=actor)


def pause(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Start no more jobs under this limit until it is unpaused; running jobs continue."""
    return put({"scope": scope, "key": key, "paused": True, "reason": reason}, actor=actor)


def unpause(scope: str, key: str = "", *, actor: Actor = PYTHON) -> LimitState:
    return put({"scope": scope, "key": key, "paused": False}, actor=actor)


def put(fields: Mapping[str, Any], *, actor: Actor = PYTHON) -> LimitState:
    """Change the limit that `scope` and `key` name; fields that are not given do not change.

    Fields: `max` (None: unlimited), `paused`, `reason`; or `reset` without the others. A row that only repeats the
    settings is deleted.
    """
    scope, key = parse_scope_and_key(fields.get("scope"), fields.get("key") or "")
    paused = None if fields.get("paused") is None else validation.parse_boolean(fields["paused"], "paused")
    if is_reset := fields.get("reset") is not None and validation.parse_boolean(fields["reset"], "reset"):
        if "max" in fields or paused is not None:
            raise InvalidInput("reset", _("cannot be combined with max or paused"))
    elif "max" not in fields and paused is None:
        raise InvalidInput([], _("give max, paused or reset"), "missing")
    maximum = None if fields.get("max") is None else validation.parse_integer(fields["max"], "max", 1, MAXIMUM_LIMIT)
    reason, configured_max = validation.parse_reason(fields.get("reason")), conf.LIMITS.get_max(scope, key)
    with db.atomic():
        rows = ConcurrencyLimit.objects.all()
        new = ConcurrencyLimit(scope=scope, key=key, max=configured_max, overridden=False)
        rows.bulk_create([new], ignore_conflicts=True)
        # Locked: a claim that counts under this limit waits for the commit.
        row = rows.select_for_update(no_key=True).filter(scope=scope, key=key).first()
        if row is None:
            raise Conflict(_("Another request is changing this limit; try again."))
        before, was_paused = _build_fields(row), row.paused
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
        after = _build_fields(row)
        if not (was_paused and row.paused):  # the reason is that of the change, which is recorded with it
            before["reason"] = after["reason"]
        action = Action.LIMIT_RESET if is_reset else Action.LIMIT_SET if "max" in fields else Action.LIMIT_PAUSE
        limit = activity.ChangedObject(f"{scope}:{key}" if key else scope, str(row), _get_tenant(scope, key))
        activity.record_changes(action, limit, before, after, actor=actor, reason=reason)
        notifications.notify(notifications.READY)
    value = f"max {row.max or 'unlimited'}{', paused' if row.paused else ''}"
    logger.info("limit %s set to %s by %s", row, value, actor)
    return get_state(scope, key)


def get_state(scope: str, key: str = "") -> LimitState:
    """Return one limit; unlimited if neither the settings nor an operator set it."""
    in_use, maximum = count_in_use(), conf.LIMITS.get_max(scope, key)
    row = ConcurrencyLimit.objects.filter(scope=scope, key=key).first()
    if row is not None:
        return _build_state(row, in_use)
    return LimitState(scope, key, maximum, in_use.of(Limit(scope, key, maximum)))


def parse_scope_and_key(scope: Any, key: Any) -> tuple[str, str]:
    """Validate scope and key; the global limit has no key, all others have one."""
    if scope not in LimitScope.values:
        raise InvalidInput("scope", _("must be one of %s") % ", ".join(LimitScope.values), "enum")
    if scope == LimitScope.GLOBAL:
        if key:
            raise InvalidInput("key", _("the global limit has no key"))
        return scope, ""
    parse_key = validation.parse_tenant if scope == LimitScope.TENANT else validation.parse_identifier
    return scope, parse_key(key, "key")


def _without_other_tenants(state: LimitState) -> LimitState:
    in_use = None if state.scope == LimitScope.GLOBAL else state.in_use
    return replace(state, in_use=in_use, paused_by="", reason="")


def _build_fields(row: ConcurrencyLimit) -> dict[str, Any]:
    """Return the fields that an activity records."""
    source = "override" if row.overridden else "settings"
    return {"max": row.max, "source": source, "paused": row.paused, "reason": row.reason}


def _get_tenant(scope: str, key: str) -> str | None:
    return key if scope == LimitScope.TENANT else None


def _build_state(row: ConcurrencyLimit, in_use: InUse) -> LimitState:
    used = in_use.of(Limit(row.scope, row.key, row.max))
    source = "override" if row.overridden else "settings"
    pause = (row.paused, row.paused_by, row.paused_at, row.reason)
    return LimitState(row.scope, row.key, row.max, used, *pause, source)
