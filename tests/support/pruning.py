"""Delete rows that the database keeps from being deleted, as retention does."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from jobs import db
from jobs.triggers import allow_pruning


def delete_kept_rows(rows: Any) -> int:
    """Delete events or activities; return their number."""
    with transaction.atomic(), allow_pruning(db.connection()):
        deleted: int = rows.delete()[0]
    return deleted
