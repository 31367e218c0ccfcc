"""Limits of concurrency and of rates: list, change, pause and reset them."""

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
from jobs.conf import UNLIMITED, LimitValues, conf
from jobs.engine.selection.buckets import delete_spends
from jobs.engine.selection.limits import read_configured
from jobs.errors import Conflict, InvalidInput
from jobs.models import Action, ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import InUse, Limit
from jobs.rates import MAX_BURST, make_buckets
from jobs.services import activity
from jobs.stats import live_counts
from jobs.stats.queries import count_in_use
from jobs.validation import fields as validation

logger = logging.getLogger("jobs.services.limits")
MAXIMUM_LIMIT = 2**31 - 1
VALUE_FIELDS = frozenset(LimitValues._fields)


@dataclass(frozen=True)
class LimitState:
    """A limit, with or without a row in the database. None: unlimited.

    `next_start_at`: when the rates let the next job start; None: now. `tokens_left`: what the token rate allows now,
    below zero if more was used.
    """

    scope: str
    key: str
    max: int | None
    in_use: int | None  # None: not shown
    paused: bool = False
    paused_by: str = ""
    paused_at: datetime | None = None
    reason: str = ""
    source: str = "settings"
    rate: str | None = None
    token_rate: str | None = None
    burst: int | None = None
    next_start_at: datetime | None = None
    tokens_left: int | None = None


def list_limits() -> list[LimitState]:
    """List the limits of the settings and of operators, by scope and key."""
    in_use = count_in_use()
    rows = ConcurrencyLimit.objects.annotate(now=Now())
    states = {(row.scope, row.key): _build_state(row, in_use) for row in rows}
    for (scope, key), values in read_configured().items():
        states.setdefault((scope, key), _build_configured_state(scope, key, values, in_use))
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


def set_rates(
    scope: str,
    key: str = "",
    *,
    rate: str | None = None,
    token_rate: str | None = None,
    burst: int | None = None,
    reason: str = "",
    actor: Actor = PYTHON,
) -> LimitState:
    """Override the rates of the settings; None: no such rate."""
    rates = {"rate": rate, "token_rate": token_rate, "burst": burst}
    return put({"scope": scope, "key": key, **rates, "reason": reason}, actor=actor)


def reset(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Remove the override, so that the values of the settings apply. A pause stays."""
    return put({"scope": scope, "key": key, "reset": True, "reason": reason}, actor=actor)


def pause(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Start no more jobs under this limit until it is unpaused; running jobs continue."""
    return put({"scope": scope, "key": key, "paused": True, "reason": reason}, actor=actor)


def unpause(scope: str, key: str = "", *, actor: Actor = PYTHON) -> LimitState:
    return put({"scope": scope, "key": key, "paused": False}, actor=actor)


def put(fields: Mapping[str, Any], *, actor: Actor = PYTHON) -> LimitState:
    """Change the limit that `scope` and `key` name; fields that are not given do not change.

    Fields: `max` (None: unlimited), `rate` and `token_rate` such as `60/min` (None: no such rate), `burst` (None: one),
    `paused`, `reason`; or `reset` without the others. A row that only repeats the settings is deleted.
    """
    scope, key = parse_scope_and_key(fields.get("scope"), fields.get("key") or "")
    paused = None if fields.get("paused") is None else validation.parse_boolean(fields["paused"], "paused")
    if is_reset := fields.get("reset") is not None and validation.parse_boolean(fields["reset"], "reset"):
        if paused is not None or not VALUE_FIELDS.isdisjoint(fields):
            raise InvalidInput("reset", _("cannot be combined with max, rate, token_rate, burst or paused"))
    elif paused is None and VALUE_FIELDS.isdisjoint(fields):
        raise InvalidInput([], _("enter max, rate, token_rate, burst, paused or reset"), "missing")
    values = _parse_values(fields)
    reason, configured = validation.parse_reason(fields.get("reason")), conf.LIMITS.get(scope, key)
    with db.atomic():
        rows = ConcurrencyLimit.objects.all()
        new = ConcurrencyLimit(scope=scope, key=key, **configured._asdict(), overridden=False)
        rows.bulk_create([new], ignore_conflicts=True)
        # Locked: a claim that counts under this limit waits for the commit.
        row = rows.select_for_update(no_key=True).filter(scope=scope, key=key).first()
        if row is None:
            raise Conflict(_("Another request is changing this limit; try again."))
        before, was_paused = _build_fields(row), row.paused
        row.reason = reason or row.reason
        if is_reset:
            _set_values(row, configured._asdict())
            row.overridden = False
        if values:
            _set_values(row, values)
            row.overridden = True
        if paused is False:
            row.paused, row.paused_by, row.paused_at, row.reason = False, "", None, ""
        elif paused and not row.paused:
            row.paused, row.paused_by, row.paused_at = True, actor.name, Now()
        row.save(using=db.alias())
        if not row.overridden and not row.paused and configured == UNLIMITED:
            row.delete(using=db.alias())
        delete_spends()
        after = _build_fields(row)
        if not (was_paused and row.paused):  # the reason is that of the change, which is recorded with it
            before["reason"] = after["reason"]
        action = Action.LIMIT_RESET if is_reset else Action.LIMIT_SET if values else Action.LIMIT_PAUSE
        limit = activity.ChangedObject(f"{scope}:{key}" if key else scope, str(row), _get_tenant(scope, key))
        activity.record_changes(action, limit, before, after, actor=actor, reason=reason)
        notifications.notify(notifications.READY)
    logger.info("limit %s set to %s by %s", row, _describe(row), actor)
    return get_state(scope, key)


def get_state(scope: str, key: str = "") -> LimitState:
    """Return one limit; unlimited if neither the settings nor an operator set it."""
    in_use = count_in_use()
    row = ConcurrencyLimit.objects.filter(scope=scope, key=key).annotate(now=Now()).first()
    if row is not None:
        return _build_state(row, in_use)
    return _build_configured_state(scope, key, conf.LIMITS.get(scope, key), in_use)


def parse_scope_and_key(scope: Any, key: Any) -> tuple[str, str]:
    """Validate scope and key; the global limit has no key, all others have one."""
    scope = validation.parse_choice(scope, "scope", LimitScope.values)
    if scope == LimitScope.GLOBAL:
        if key:
            raise InvalidInput("key", _("the global limit has no key"))
        return scope, ""
    parse_key = validation.parse_tenant if scope == LimitScope.TENANT else validation.parse_identifier
    return scope, parse_key(key, "key")


def _parse_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the given ones of VALUE_FIELDS; return them as columns."""
    values: dict[str, Any] = {}
    for name, (low, high) in {"max": (1, MAXIMUM_LIMIT), "burst": (1, MAX_BURST)}.items():
        if name in fields:
            number = fields[name]
            values[name] = None if number is None else validation.parse_integer(number, name, low, high)
    for name in ("rate", "token_rate"):
        if name in fields:
            values[name] = "" if fields[name] is None else validation.parse_rate(fields[name], name)
    return values


def _set_values(row: ConcurrencyLimit, values: Mapping[str, Any]) -> None:
    """Set columns. A bucket whose rate is new starts full. Raise InvalidInput for a burst without a rate."""
    for name, level in (("rate", "rate_level"), ("token_rate", "token_level")):
        if name in values and bool(values[name]) != bool(getattr(row, name)):
            setattr(row, level, None)
    for name, value in values.items():
        setattr(row, name, value)
    if not row.rate and "burst" not in values:
        row.burst = None  # it was that of the rate
    if row.burst is not None and not row.rate:
        raise InvalidInput("burst", _("needs a rate"))


def _describe(row: ConcurrencyLimit) -> str:
    rates = [f"{name} {value}" for name in ("rate", "token_rate", "burst") if (value := getattr(row, name))]
    return ", ".join([f"max {row.max or 'unlimited'}", *rates, *(["paused"] if row.paused else [])])


def _without_other_tenants(state: LimitState) -> LimitState:
    in_use = None if state.scope == LimitScope.GLOBAL else state.in_use
    return replace(state, in_use=in_use, tokens_left=None, next_start_at=None, paused_by="", reason="")


def _build_fields(row: ConcurrencyLimit) -> dict[str, Any]:
    """Return the fields that an activity records."""
    source = "override" if row.overridden else "settings"
    values = {**row.values._asdict(), "rate": row.rate or None, "token_rate": row.token_rate or None}
    return {**values, "source": source, "paused": row.paused, "reason": row.reason}


def _get_tenant(scope: str, key: str) -> str | None:
    return key if scope == LimitScope.TENANT else None


def _build_state(row: ConcurrencyLimit, in_use: InUse) -> LimitState:
    used = in_use.of(Limit(row.scope, row.key, row.max))
    source = "override" if row.overridden else "settings"
    pause = (row.paused, row.paused_by, row.paused_at, row.reason)
    now = row.now  # type: ignore[attr-defined]
    buckets = make_buckets(row, now)
    return LimitState(
        *(row.scope, row.key, row.max, used, *pause, source),
        *(row.rate or None, row.token_rate or None, row.burst),
        next_start_at=buckets.next_start_at(now),
        tokens_left=None if buckets.tokens is None else buckets.tokens.count_whole(),
    )


def _build_configured_state(scope: str, key: str, values: LimitValues, in_use: InUse) -> LimitState:
    return LimitState(
        *(scope, key, values.max, in_use.of(Limit(scope, key, values.max))),
        rate=values.rate or None,
        token_rate=values.token_rate or None,
        burst=values.burst,
    )
