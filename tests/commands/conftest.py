"""Real workers for the commands that wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.worker_processes import Fleet


@pytest.fixture
def fleet(process_env: dict[str, str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(process_env, tmp_path) as made:
        yield made
        print(made.logs())
