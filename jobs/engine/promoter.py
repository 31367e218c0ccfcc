"""The promoter: lets exactly the head of each free lane through.

Nobody else decides about a lane. Whoever changes one leaves a mark in the same transaction (`moves.mark_lanes`);
the promoter consumes marks without waiting for anyone.
"""

from __future__ import annotations

from uuid import UUID

from jobs import db, notifications
from jobs.engine.sql import promote as sql
from jobs.engine.sql.promote import BATCH_SIZE, PromotionResult, QueueState
from jobs.models import LaneMark


def mark_dirty(*lane_ids: UUID | None) -> None:
    """Ask the promoter to look at these lanes again, and soon."""
    marks = [LaneMark(lane_id=lane_id) for lane_id in sorted({lane_id for lane_id in lane_ids if lane_id is not None})]
    if marks:
        LaneMark.objects.bulk_create(marks)
        notifications.notify(notifications.LANE)


def promote() -> int:
    """Run one round. Return how many marks it looked at."""
    return promote_round().marks


def promote_round() -> PromotionResult:
    """Look at the targets of the oldest marks once."""
    with db.atomic() as connection:
        return sql.promote(connection, BATCH_SIZE)


def promote_due() -> int:
    """Promote jobs whose time has come. Return how many."""
    with db.atomic() as connection:
        return sql.promote_due(connection, BATCH_SIZE)


def read_queue_state() -> QueueState:
    """Read what a worker with free slots has to know, in one look."""
    return sql.read_queue_state(db.connection())
