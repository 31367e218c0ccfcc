"""Whether anybody wants to hear of a move: remembered as a guess, found out for certain by the move's own statement.

While no endpoint wants an event, the engine makes the moves it tells of without a transaction around them and without
asking us: the condition `unwanted` is part of the statement that makes the move.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import cache

from jobs import db
from jobs.states import EventKind
from webhooks import events
from webhooks.models import WebhookEndpoint

DOUBT_SEC = 1.0


class Listening:
    """See `jobs.hooks.Interest`."""

    def __init__(self) -> None:
        self._wanted: frozenset[str] = frozenset()
        self._doubted = 0.0

    def expected(self, *kinds: EventKind) -> bool:
        return not self._wanted.isdisjoint(events.names_of(kinds))

    def look(self, *kinds: EventKind) -> bool:
        said = WebhookEndpoint.objects.using(db.alias()).filter(enabled=True).values_list("events", flat=True)
        words = {word for each in said for word in each}
        self._wanted = frozenset(name for name in events.EVENTS if events.wants(words, name))
        return self.expected(*kinds)

    def unwanted(self, *kinds: EventKind) -> str:
        return unwanted(kinds)

    def learned(self, wanted: Collection[str]) -> None:
        """The outbox was told of moves, and these were wanted."""
        if names := frozenset(wanted) - self._wanted:
            self._wanted |= names
        elif not wanted and time.monotonic() - self._doubted > DOUBT_SEC:  # by this tenant; others may want them
            self._doubted = time.monotonic()
            self.look()


listening = Listening()


@cache
def unwanted(kinds: tuple[EventKind, ...]) -> str:
    """For PostgreSQL; on SQLite there is always a transaction, in which the outbox looks for itself."""
    words = ", ".join(f"'{word}'" for word in events.filters_for(events.names_of(kinds)))
    if not words:
        return "true"
    listening_rows = f"{WebhookEndpoint._meta.db_table} WHERE enabled AND events ?| ARRAY[{words}]"
    return f"NOT EXISTS (SELECT 1 FROM {listening_rows})"  # noqa: S608 — our own words
