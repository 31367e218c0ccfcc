"""The example workers, as they are shipped, against real servers."""

from __future__ import annotations

import random
import shutil

import pytest

from tests.chaos import remote as mixed
from tests.remote.crew import SHELL_TOOLS
from tests.worker.conftest import chance as chance
from tests.worker.conftest import fleet as fleet
from tests.worker.harness import Fleet

needs_shell_tools = pytest.mark.skipif(
    not all(map(shutil.which, SHELL_TOOLS)), reason=f"the shell example needs {' and '.join(SHELL_TOOLS)}"
)


@needs_shell_tools
def test_both_examples_and_a_local_worker_share_one_queue(fleet: Fleet, chance: random.Random) -> None:
    verdict = mixed.run(fleet, chance, jobs=60, lanes=8)
    print(verdict)
    assert not verdict.broken, str(verdict)
