"""The five-minute start is copied from its page, command by command, and works from the built wheel.

Here the wheel is installed already, beside what it needs; `make matrix` performs the line `pip install …` itself, in an
empty environment, with the built wheel in the place of the published one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.packaging import doc_examples, start_guide
from tests.packaging.host_site import OURS


@pytest.mark.sqlite_only  # the page is about SQLite
def test_the_five_minute_start_ends_with_a_completed_job_in_the_sites_admin(
    foreign_python: Path, tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    env["PATH"] = os.pathsep.join([str(foreign_python.parent), str(Path(sys.executable).parent), env["PATH"]])
    page = start_guide.follow(tmp_path, env, installed=True)
    assert start_guide.is_completed(page, "shop.greet"), page


def test_the_five_minute_start_takes_at_most_eight_commands() -> None:
    lines = doc_examples.commands(start_guide.GUIDE)
    assert len(lines) <= 8, lines
    assert [line for line in lines if "&&" in line or ";" in line] == []
    assert lines[0] == "pip install django-jobscheduler"
