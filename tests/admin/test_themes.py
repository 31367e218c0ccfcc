"""In a site whose admin wears a theme, the console's pages still show and do what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = ("test_pages.py", "-k", "boss or job_page or trail")


@pytest.mark.once
@pytest.mark.parametrize("theme", ["unfold", "jazzmin"])
def test_the_pages_stay_whole_under(theme: str) -> None:
    """Tests of the stock admin, once more."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "--ds=tests.admin.themed_settings"]
    ended = subprocess.run(
        [*command, str(here / SUITE[0]), *SUITE[1:]],
        env={**os.environ, "THEME": theme},
        cwd=here.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
