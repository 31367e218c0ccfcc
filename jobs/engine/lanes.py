"""The promoter: lets exactly the head of each free lane through.

Nobody else decides about a lane. Whoever changes one leaves a mark in the same transaction (`journal.mark`);
the promoter consumes marks without waiting for anyone.
"""

from __future__ import annotations

from typing import NamedTuple

from jobs import db
from jobs.engine.sql import dialect

BATCH = 500


class Round(NamedTuple):
    looked: int  # marks that were looked at
    left: int  # marks that could not be decided, because somebody else had a row in hand

    @property
    def is_unfinished(self) -> bool:
        return self.looked >= BATCH or self.left > 0


def promote() -> int:
    """One round. Returns how many marks it looked at."""
    return promote_round().looked


def promote_round() -> Round:
    with db.atomic() as connection:
        return Round(*dialect(connection).promote(connection, BATCH))


def wake_due() -> int:
    """Let jobs whose time has come step forward. Returns how many did."""
    with db.atomic() as connection:
        return int(dialect(connection).wake_due(connection, BATCH))


class Ahead(NamedTuple):
    due_sec: float | None  # until the next job's time comes
    marked: bool  # whether some lane has changed
    ready: bool  # whether some job could be claimed, by somebody


def look_ahead() -> Ahead:
    """What a worker with nothing to do has to know, in one look."""
    connection = db.connection()
    return Ahead(*dialect(connection).look_ahead(connection))
