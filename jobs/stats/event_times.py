"""Find job events by their time, along the primary key: event ids grow with time. Those of the demo may be negative."""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs import db

CLOCK_LEEWAY = timedelta(minutes=10)  # event ids are assigned before the commit, and times may come from another clock
# A binary search finds the first event since a time. The difference is halved: halves of negative sums round upwards.
_EVENT_TIME = "(SELECT at FROM jobscheduler_jobevent WHERE id >= low + (high - low) / 2 ORDER BY id LIMIT 1)"
_FIRST_EVENT = f"""
    WITH RECURSIVE half (low, high) AS (
        SELECT coalesce((SELECT min(id) FROM jobscheduler_jobevent), 0),
               coalesce((SELECT max(id) FROM jobscheduler_jobevent), 0)
        UNION ALL
        SELECT CASE WHEN {_EVENT_TIME} < %s THEN low + (high - low) / 2 + 1 ELSE low END,
               CASE WHEN {_EVENT_TIME} < %s THEN high ELSE low + (high - low) / 2 END
        FROM half WHERE low < high
    )
    SELECT max(low) FROM half
"""  # noqa: S608 — constants only


def find_first_event_id(since: datetime) -> int:
    """Return the id of the first event since a time, or of the last one before it; 0 without events."""
    connection = db.connection()
    at = connection.ops.adapt_datetimefield_value(since)
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_EVENT, [at, at])
        return int(cursor.fetchone()[0])
