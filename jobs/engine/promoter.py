"""The promoter: lets exactly the head of each free lane through.

Nobody else decides about a lane. Whoever changes one leaves a mark in the same transaction (`moves.mark_lanes`);
the promoter consumes marks without waiting for anyone.
"""

from __future__ import annotations

from jobs import db
from jobs.engine.sql import promote as sql
from jobs.engine.sql.promote import BATCH, Promoted, QueueState


def promote() -> int:
    """Run one round. Return how many marks it looked at."""
    return promote_round().marks


def promote_round() -> Promoted:
    """Look at the targets of the oldest marks once."""
    with db.atomic() as connection:
        return sql.promote(connection, BATCH)


def wake_due() -> int:
    """Promote jobs whose time has come. Return how many."""
    with db.atomic() as connection:
        return sql.promote_due(connection, BATCH)


def look_ahead() -> QueueState:
    """Read what a worker with free slots has to know, in one look."""
    return sql.read_queue_state(db.connection())
