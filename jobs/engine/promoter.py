"""Make exactly the first job of each free target ready, and jobs whose time has come.

Only the promoter decides which job of a target is next. Code that changes a target marks it dirty in the same
transaction; the promoter consumes the marks and waits for no lock.
"""

from __future__ import annotations

from uuid import UUID

from jobs import db, notifications
from jobs.engine.sql import promote as sql
from jobs.engine.sql.promote import BATCH_SIZE, PromotionResult, QueueState
from jobs.models import LaneMark


def mark_dirty(*lane_ids: UUID | None) -> None:
    """Mark targets (by lane id) for the promoter's next round, and notify it."""
    marks = [LaneMark(lane_id=lane_id) for lane_id in sorted({lane_id for lane_id in lane_ids if lane_id is not None})]
    if marks:
        LaneMark.objects.bulk_create(marks)
        notifications.notify(notifications.LANE)


def promote() -> int:
    """Run one round; return the number of marks that it read."""
    return promote_round().marks


def promote_round() -> PromotionResult:
    """Decide about the targets of the oldest marks, one batch."""
    with db.atomic() as connection:
        return sql.promote(connection, BATCH_SIZE)


def promote_due() -> int:
    """Promote jobs whose time has come, one batch; return how many."""
    with db.atomic() as connection:
        return sql.promote_due(connection, BATCH_SIZE)


def read_queue_state() -> QueueState:
    """Read the due time, dirty targets and ready jobs in one query."""
    return sql.read_queue_state(db.connection())
