from __future__ import annotations

import pytest

from jobs.admin import jobs, queue


@pytest.fixture(autouse=True)
def forget_cached_counts() -> None:
    """Make the console count anew in each test."""
    jobs._count_cache.clear()
    queue._queue_cache.clear()
