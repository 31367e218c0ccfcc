"""Whether a transaction of the test's database waits for a lock."""

from __future__ import annotations

from jobs import db


def is_lock_awaited() -> bool:
    """Return whether a connection waits for a lock; SQLite cannot tell, and counts as yes."""
    connection = db.connection()
    if connection.vendor == "sqlite":
        return True
    with connection.cursor() as cursor:
        cursor.execute(  # other tests wait on the same server: the locks that it holds name the database
            """SELECT 1 FROM pg_locks waits JOIN pg_locks holds USING (pid) JOIN pg_database d ON d.oid = holds.database
               WHERE NOT waits.granted AND d.datname = current_database()"""
        )
        return cursor.fetchone() is not None
