from __future__ import annotations

import pytest

from jobs.stats.cache import RateLimitedCache


@pytest.fixture(autouse=True)
def forget_cached_counts() -> None:
    """Make the console count anew in each test."""
    RateLimitedCache.clear_all()
