"""What this worker holds right now: one entry per job in a slot, shared by its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from jobs.engine.claim import Claim
from jobs.engine.context import Context
from jobs.states import StopMode


@dataclass(eq=False)
class Held:
    """A claimed job and how it is doing. Times are monotonic."""

    claim: Claim
    ctx: Context
    deadline: float  # the lease is sure to be ours until then
    started: float | None = None  # when its handler was called; a claimed job may wait for its process first
    interrupt: Callable[[], None] = lambda: None  # makes a handler that can be interrupted stop
    kill: Callable[[], None] | None = None  # ends a handler by force, where that is possible
    asked_at: float | None = None
    timed_out: bool = False
    lost: bool = False
    returned: bool = False  # the handler has; its end is about to be recorded
    withdrawn: bool = False  # before its handler was called: it never will be
    writing: threading.Lock = field(default_factory=threading.Lock)
    starting: threading.Lock = field(default_factory=threading.Lock)

    @property
    def id(self) -> UUID:
        return self.claim.id

    @property
    def slot(self) -> int:
        return int(self.claim.lease_owner.rpartition("#")[2])

    def begin(self) -> bool:
        """Before its handler is called. Whether it may be."""
        with self.starting:
            if not self.withdrawn:
                self.started = time.monotonic()
            return not self.withdrawn

    def withdraw(self) -> bool:
        """See to it that its handler is not called. Whether that was in time, and now for the first time."""
        with self.starting:
            is_first = self.started is None and not self.withdrawn
            self.withdrawn |= is_first
            return is_first

    def ask_to_stop(self, mode: StopMode | None) -> None:
        """Tell the handler to stop. Asking again only changes the mode."""
        first = self.asked_at is None
        self.asked_at = self.asked_at if not first else time.monotonic()
        self.ctx.request_stop(mode)
        if first:
            self.interrupt()

    def lose(self) -> None:
        """The lease is gone, or cannot be proven to be ours any more: whatever the handler does now is not recorded."""
        self.lost = True
        self.ask_to_stop(None)
        if self.kill is not None:
            self.kill()


def named(held: Sequence[Held], most: int = 10) -> str:
    """For one log line, however many they are."""
    names = ", ".join(str(each.id) for each in held[:most])
    more = f" and {len(held) - most} more" if len(held) > most else ""
    return f"{len(held)} job{'s' if len(held) > 1 else ''} ({names}{more})"


class Leases:
    def __init__(self) -> None:
        self._held: dict[UUID, Held] = {}
        self._lock = threading.Lock()

    def add(self, held: Held) -> None:
        with self._lock:
            self._held[held.id] = held

    def drop(self, held: Held) -> None:
        with self._lock:
            if self._held.get(held.id) is held:
                del self._held[held.id]

    def __iter__(self) -> Iterator[Held]:
        with self._lock:
            return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)
