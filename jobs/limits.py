"""Limits as an operator handles them: a side door beside `services` for the commands, the console and the API."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db, parsing
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.engine import wakeup
from jobs.engine.selection.limits import configured
from jobs.errors import Conflict, InvalidInput
from jobs.figures import in_use
from jobs.models import ConcurrencyLimit, LimitScope
from jobs.policies.concurrency import InUse, Limit
from jobs.services import REASON_LENGTH

logger = logging.getLogger("jobs.limits")
LARGEST = 2**31 - 1


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


def listing() -> list[LimitState]:
    """Every limit that the settings or an operator set, by scope and key."""
    active = in_use()
    rows = ConcurrencyLimit.objects.all()
    found = {(row.scope, row.key): _shown(row, active) for row in rows}
    for (scope, key), most in configured().items():
        found.setdefault((scope, key), LimitState(scope, key, most, active.of(Limit(scope, key, most))))
    order = list(LimitScope.values)
    return [found[place] for place in sorted(found, key=lambda place: (order.index(place[0]), place[1]))]


def set_maximum(
    scope: str, key: str = "", *, maximum: int | None, reason: str = "", actor: Actor = PYTHON
) -> LimitState:
    """Override what the settings say; None is unlimited."""
    most = None if maximum is None else parsing.integer(maximum, "max", 1, LARGEST)
    with _changing(scope, key, reason, actor) as row:
        row.max, row.overridden = most, True
    return state(scope, key)


def reset(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Drop the override: the maximum is what the settings say. A pause stays until it is lifted."""
    with _changing(scope, key, reason, actor) as row:
        row.max, row.overridden = conf.LIMITS.of(row.scope, row.key), False
    return state(scope, key)


def pause(scope: str, key: str = "", *, reason: str = "", actor: Actor = PYTHON) -> LimitState:
    """Nothing more starts under this limit until it is unpaused; what runs goes on."""
    with _changing(scope, key, reason, actor) as row:
        if not row.paused:
            row.paused, row.paused_by, row.paused_at = True, actor.name, Now()
    return state(scope, key)


def unpause(scope: str, key: str = "", *, actor: Actor = PYTHON) -> LimitState:
    with _changing(scope, key, "", actor) as row:
        row.paused, row.paused_by, row.paused_at, row.reason = False, "", None, ""
    return state(scope, key)


def put(said: Mapping[str, Any], *, actor: Actor = PYTHON) -> LimitState:
    """One limit as a document says it: `scope`, `key`, and some of `max` (None: unlimited), `paused` and `reason`;
    what is not said stays as it is. Or `reset`, which stands alone."""
    scope, key = place(said.get("scope"), said.get("key") or "")
    reason, paused = said.get("reason") or "", said.get("paused")
    if said.get("reset") is not None and parsing.boolean(said["reset"], "reset"):
        if "max" in said or paused is not None:
            raise InvalidInput("reset", _("stands alone, without max or paused"))
        return reset(scope, key, reason=reason, actor=actor)
    if "max" not in said and paused is None:
        raise InvalidInput([], _("say max, paused or reset"), "missing")
    return _put(scope, key, said, reason, actor)


def state(scope: str, key: str = "") -> LimitState:
    """One limit as it is now; unlimited if nobody set it."""
    active, most = in_use(), conf.LIMITS.of(scope, key)
    row = ConcurrencyLimit.objects.filter(scope=scope, key=key).first()
    return _shown(row, active) if row else LimitState(scope, key, most, active.of(Limit(scope, key, most)))


def place(scope: Any, key: Any) -> tuple[str, str]:
    """Scope and key through the gate; the global limit has no key, all others do."""
    if scope not in LimitScope.values:
        raise InvalidInput("scope", _("must be one of %s") % ", ".join(LimitScope.values), "enum")
    if scope == LimitScope.GLOBAL:
        if key:
            raise InvalidInput("key", _("the global limit has no key"))
        return scope, ""
    gate = parsing.tenant if scope == LimitScope.TENANT else parsing.identifier
    return scope, gate(key, "key")


def _put(scope: str, key: str, said: Mapping[str, Any], reason: str, actor: Actor) -> LimitState:
    most = None if said.get("max") is None else parsing.integer(said["max"], "max", 1, LARGEST)
    paused = None if said.get("paused") is None else parsing.boolean(said["paused"], "paused")
    with _changing(scope, key, reason, actor) as row:
        if "max" in said:
            row.max, row.overridden = most, True
        if paused is False:
            row.paused, row.paused_by, row.paused_at, row.reason = False, "", None, ""
        elif paused and not row.paused:
            row.paused, row.paused_by, row.paused_at = True, actor.name, Now()
    return state(scope, key)


@contextmanager
def _changing(scope: str, key: str, reason: str, actor: Actor) -> Iterator[ConcurrencyLimit]:
    """The limit's row, locked: a claim that counts under it waits. A row that says nothing of its own is removed."""
    scope, key = place(scope, key)
    why = parsing.text(reason, "reason", max_length=REASON_LENGTH, allow_empty=True)
    with db.atomic():
        rows = ConcurrencyLimit.objects.all()
        most = conf.LIMITS.of(scope, key)
        rows.bulk_create([ConcurrencyLimit(scope=scope, key=key, max=most, overridden=False)], ignore_conflicts=True)
        row = rows.select_for_update(no_key=True).filter(scope=scope, key=key).first()
        if row is None:
            raise Conflict(_("Somebody else is changing this limit; try again."))
        row.reason = why or row.reason
        yield row
        row.save(using=db.alias())
        if not row.overridden and not row.paused and conf.LIMITS.of(scope, key) is None:
            row.delete(using=db.alias())
        wakeup.notify(wakeup.READY)
    said = f"max {row.max or 'unlimited'}{', paused' if row.paused else ''}"
    logger.info("limit %s set to %s by %s", row, said, actor.name or actor.kind)


def _shown(row: ConcurrencyLimit, active: InUse) -> LimitState:
    used = active.of(Limit(row.scope, row.key, row.max))
    source = "override" if row.overridden else "settings"
    pause = (row.paused, row.paused_by, row.paused_at, row.reason)
    return LimitState(row.scope, row.key, row.max, used, *pause, source)
