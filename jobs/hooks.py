"""How other apps hear of a job's moves, inside the transaction that makes them.

A hook gets all moves of one transaction step at once, so that it can answer with one statement. A foreign hook
runs in a savepoint: when it fails, that is logged and counted and the move stands. A `required` hook (our own
outbox) is part of the move: when it fails, the move fails.

Being told takes a transaction around the move. A hook whose `interest` may be nobody's at the moment spares the engine
that: see `Interest`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
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


class Interest(Protocol):
    """What a hook wants to hear, where that is for rows to say which anybody may change at any time.

    A guess from memory may only say which way to try first. Such a hook is left untold only where the statement that
    makes the move finds in its own snapshot that nobody wants to hear of it.
    """

    def expected(self, *kinds: EventKind) -> bool:
        """Whether somebody wants one of these, by what is remembered."""

    def look(self, *kinds: EventKind) -> bool:
        """The same, asked of the database, and remembered."""

    def unwanted(self, *kinds: EventKind) -> str:
        """SQL without parameters, true while nobody wants any of these."""


@dataclass(frozen=True)
class _Listener:
    hook: Hook
    required: bool
    interest: Interest | None


_listeners: list[_Listener] = []
failures: dict[str, int] = {}


def listen(hook: Hook, *, required: bool = False, interest: Interest | None = None) -> Hook:
    """Register a hook; listening again only changes how. Without an interest it hears everything."""
    forget(hook)
    _listeners.append(_Listener(hook, required, interest))
    return hook


def forget(hook: Hook) -> None:
    _listeners[:] = [each for each in _listeners if each.hook != hook]


def anyone_listens() -> bool:
    """Inside a transaction that is open anyway: tell them."""
    return bool(_listeners)


def must_tell(*kinds: EventKind) -> bool:
    """Whether to open a transaction in which moves of these kinds are told. If not, the move needs the `guard`."""
    return any(each.interest is None or each.interest.expected(*kinds) for each in _listeners)


def guard(*kinds: EventKind) -> str:
    """SQL for the one statement that makes moves of these kinds untold: where it is false, nothing may change.

    Empty if no hook could want to hear of them. A statement that changed nothing must be tried again in a transaction,
    with the hooks told.
    """
    return " AND ".join(each.interest.unwanted(*kinds) for each in _listeners if each.interest is not None)


def look_again(*kinds: EventKind) -> bool:
    """After a guarded statement that found nothing to do: whether that may have been for its guard."""
    return any(each.interest.look(*kinds) for each in _listeners if each.interest is not None)


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
