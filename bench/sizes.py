"""The size of a benchmark: `--scale` shrinks every amount, to check that all parts work."""

from __future__ import annotations

import os

SCALE = "BENCH_SCALE"
QUICK = 0.01


def get_scale() -> float:
    return float(os.environ.get(SCALE, "1"))


def scale_size(full: float, *, minimum: int = 1) -> int:
    """Return an amount at the current scale, at least `minimum`."""
    return max(minimum, round(full * get_scale()))


def is_quick() -> bool:
    return get_scale() <= QUICK
