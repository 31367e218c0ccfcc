"""A fleet for each test; what it printed is shown when the test fails."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.worker_processes import Fleet


@pytest.fixture
def fleet(process_env: dict[str, str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(process_env, tmp_path) as made:
        yield made
        print(made.logs())


@pytest.fixture
def chance() -> random.Random:
    """SEED repeats the choices of a run; who wins a race is still up to the machine."""
    seed = os.environ.get("SEED") or secrets.token_hex(4)
    print(f"SEED={seed}")
    return random.Random(seed)
