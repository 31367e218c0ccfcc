from __future__ import annotations

from tests.admin.conftest import forget_cached_counts as forget_cached_counts
