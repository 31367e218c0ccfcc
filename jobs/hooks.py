"""How other apps hear of a job's moves, inside the transaction that makes them.

A hook gets all moves of one transaction step at once, so that it can answer with one statement. A foreign hook
runs in a savepoint: when it fails, that is logged and counted and the move stands. A `required` hook (our own
outbox) is part of the move: when it fails, the move fails.

Being told takes a transaction around the move. A hook with an `interest` spares the engine's busiest statements that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    makes the move finds in its own snapshot that nobody wants to hear of it; or that statement tells it by itself.
    """

    def expected(self, *kinds: EventKind) -> bool:
        """Whether somebody wants one of these, by what is remembered."""

    def look(self, *kinds: EventKind) -> bool:
        """The same, asked of the database, and remembered."""

    def unwanted(self, *kinds: EventKind) -> str:
        """SQL without parameters, true while nobody wants any of these. Empty: nobody ever will."""

    def along_ends(self) -> str | None:
        """SQL without parameters: common table expressions, each after a comma, that write down whatever somebody
        wants to hear of `ended (id, token, tenant, status, retried, retry_id)`. None: the hook has to be called."""

    def along_claims(self) -> str | None:
        """Likewise, of `took`, whose columns are CLAIMED and CLAIM_TOLD."""


@dataclass(frozen=True)
class Clauses:
    """What a single statement needs so that no hook has to be called for its moves."""

    guard: str = ""  # where it is false, nothing may change, and hooks have to be called after all
    along: str = ""  # tells them within the statement


NO_CLAUSES = Clauses()


@dataclass(frozen=True)
class _Listener:
    hook: Hook
    required: bool
    interest: Interest | None


_listeners: list[_Listener] = []
_gathering = threading.local()
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


def for_births() -> Clauses | None:
    """None, here and below: open a transaction, make the moves in it, and `tell`."""
    return _clauses((), lambda interest: "", (EventKind.SUBMITTED,))


def for_claims() -> Clauses | None:
    return _clauses((EventKind.RUNNING,), lambda interest: interest.along_claims(), ())


def for_ends(ends: Sequence[EventKind], births: Sequence[EventKind] = ()) -> Clauses | None:
    """`births` are those of the retries that the same statement makes."""
    return _clauses(ends, lambda interest: interest.along_ends(), births)


def look_again(*kinds: EventKind) -> bool:
    """After a guarded statement that found nothing to do: whether that may have been for its guard."""
    return any(each.interest.look(*kinds) for each in _listeners if each.interest is not None)


@contextmanager
def gathered() -> Iterator[None]:
    """For who makes several kinds of moves in one transaction: hooks are told of all of them at once, in its end.

    Inside that transaction; what is taken back within it must take back all of it.
    """
    _gathering.events = []
    try:
        yield
        events = _gathering.events
    finally:
        _gathering.events = None
    tell(events)


def tell(events: Sequence[Event]) -> None:
    """Call every hook with `events`. Must run inside the transaction that made them."""
    if (waiting := getattr(_gathering, "events", None)) is not None:
        waiting.extend(events)
        return
    for listener in _listeners if events else ():
        if listener.required:
            listener.hook(events)
        else:
            _tell_guest(listener.hook, events)


def _clauses(
    kinds: Sequence[EventKind], along: Callable[[Interest], str | None], others: Sequence[EventKind]
) -> Clauses | None:
    """`kinds` can be told within the statement, `others` cannot."""
    guards, written = [], ""
    for listener in _listeners:
        interest = listener.interest
        if interest is None or (others and interest.expected(*others)):
            return None
        is_wanted = interest.expected(*kinds)
        told = along(interest) if is_wanted else ""
        if told is None:
            return None
        written += told
        if unsaid := (*others,) if is_wanted else (*kinds, *others):
            guards.append(interest.unwanted(*unsaid))
    return Clauses(" AND ".join(filter(None, guards)), written)


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
