"""Whether anybody wants to hear of a move: remembered as a guess, found out for certain by the move's own statement.

While no endpoint wants an event, the condition `unwanted` is part of the statement that makes the moves it tells of;
while one does, the outbox itself is. Either way nothing is missed, and nobody is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import cache

from jobs.states import EventKind
from webhooks import events, outbox_sql
from webhooks.models import WebhookEndpoint

DOUBT_SEC = 10.0  # how long we go on writing for somebody who may have gone


class Listening:
    """See `jobs.hooks.Interest`. `on_writing` is called when the engine is about to write to the outbox by itself."""

    def __init__(self) -> None:
        self.on_writing: Callable[[], None] = lambda: None
        self.forget()

    def forget(self) -> None:
        self._wanted: frozenset[str] = frozenset()
        self._looked = 0.0

    def expected(self, *kinds: EventKind) -> bool:
        if self._wanted and time.monotonic() - self._looked > DOUBT_SEC:
            return self.look(*kinds)
        return not self._wanted.isdisjoint(events.names_of(*kinds))

    def look(self, *kinds: EventKind) -> bool:
        self._looked = time.monotonic()
        said = WebhookEndpoint.objects.filter(enabled=True).values_list("events", flat=True)
        words = {word for each in said for word in each}
        self._wanted = frozenset(name for name in events.EVENTS if events.wants(words, name))
        return not self._wanted.isdisjoint(events.names_of(*kinds))

    def unwanted(self, *kinds: EventKind) -> str:
        return unwanted(kinds)

    def along_ends(self) -> str:
        self.on_writing()
        return outbox_sql.along_ends()

    def along_claims(self) -> str:
        self.on_writing()
        return outbox_sql.along_claims()

    def learned(self, wanted: Collection[str]) -> None:
        """The outbox was told of moves, and these were wanted."""
        if names := frozenset(wanted) - self._wanted:
            self._wanted |= names


listening = Listening()


@cache
def unwanted(kinds: tuple[EventKind, ...]) -> str:
    """For PostgreSQL; on SQLite there is always a transaction, in which the outbox looks for itself."""
    words = ", ".join(f"'{word}'" for word in events.filters_for(events.names_of(*kinds)))
    if not words:
        return ""
    listening_rows = f"{WebhookEndpoint._meta.db_table} WHERE enabled AND events ?| ARRAY[{words}]"
    return f"NOT EXISTS (SELECT 1 FROM {listening_rows})"  # noqa: S608 — our own words
