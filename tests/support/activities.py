"""The activities that a piece of work records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jobs.models import Activity


@contextmanager
def record_new() -> Iterator[list[Activity]]:
    """Yield a list that has, after the block, the activities recorded in it, oldest first."""
    known = set(Activity.objects.values_list("pk", flat=True))
    found: list[Activity] = []
    yield found
    found += [row for row in Activity.objects.order_by("pk") if row.pk not in known]
