"""How large a run is: `--scale` shrinks every amount, for a look at whether all of it still works."""

from __future__ import annotations

import os

SCALE = "BENCH_SCALE"
QUICK = 0.01


def scale() -> float:
    return float(os.environ.get(SCALE, "1"))


def scaled(full: float, *, least: int = 1) -> int:
    return max(least, round(full * scale()))


def is_quick() -> bool:
    return scale() <= QUICK
