"""How other apps hear of a job's moves, inside the transaction that makes them.

A hook gets all moves of one transaction step at once, so that it can answer with one statement. A foreign hook
runs in a savepoint: when it fails, that is logged and counted and the move stands. A `required` hook (our own
outbox) is part of the move: when it fails, the move fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from jobs import db
from jobs.states import EventKind, Status

logger = logging.getLogger("jobs.hooks")


@dataclass(frozen=True)
class Moved:
    """One job took one arrow. `source` is None at its birth; `retried_by` is the retry a failure made."""

    job_id: UUID
    kind: EventKind
    source: Status | None
    target: Status
    tenant: str
    reason: str = ""
    retried_by: UUID | None = None


@dataclass(frozen=True)
class GroupFinished:
    """A group ended; `round` counts how often it was opened."""

    group_id: UUID
    status: str
    tenant: str
    round: int


Event = Moved | GroupFinished
Hook = Callable[[Sequence[Event]], None]


@dataclass(frozen=True)
class _Listener:
    hook: Hook
    required: bool


_listeners: list[_Listener] = []
failures: dict[str, int] = {}


def listen(hook: Hook, *, required: bool = False) -> Hook:
    """Register a hook; listening again only changes whether it is required."""
    forget(hook)
    _listeners.append(_Listener(hook, required))
    return hook


def forget(hook: Hook) -> None:
    _listeners[:] = [each for each in _listeners if each.hook != hook]


def anyone_listens() -> bool:
    return bool(_listeners)


def tell(events: Sequence[Event]) -> None:
    """Call every hook with `events`. Must run inside the transaction that made them."""
    for listener in _listeners if events else ():
        if listener.required:
            listener.hook(events)
        else:
            _tell_guest(listener.hook, events)


def _tell_guest(hook: Hook, events: Sequence[Event]) -> None:
    try:
        with db.atomic():
            hook(events)
    except Exception:
        name = _name(hook)
        failures[name] = failures.get(name, 0) + 1
        logger.exception("hook %s failed on %d events; the moves stand", name, len(events))


def _name(hook: Any) -> str:
    return f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', hook)}"
