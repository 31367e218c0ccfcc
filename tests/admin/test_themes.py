"""In a site whose admin wears a theme, the console's pages still show and do what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = ("test_pages.py", "test_editing_jobs.py")


@pytest.mark.once
@pytest.mark.parametrize("theme", ["unfold", "jazzmin"])
def test_the_pages_stay_whole_under(theme: str) -> None:
    """The tests of the stock admin, once more."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--ds=tests.themed_settings"]
    ended = subprocess.run(
        [*command, *(str(here / name) for name in SUITE)],
        env={**os.environ, "THEME": theme},
        cwd=here.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
