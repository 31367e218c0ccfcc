"""The five-minute start is copied from its page, command by command, and works from the built wheel."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.house.processes import run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "start.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"# (\S+): (new|at the end)\n")


@pytest.mark.sqlite_only  # the page is about SQLite
def test_the_five_minute_start_does_what_it_says(foreign_python: Path, tmp_path: Path) -> None:
    ours = ("DJANGO_", "JOBSCHEDULER_", "PYTHON", "DATABASE_URL")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env["PATH"] = os.pathsep.join([str(foreign_python.parent), str(Path(sys.executable).parent), env["PATH"]])
    printed: dict[str, str] = {}
    for language, text in BLOCK.findall(PAGE):
        if language == "python":
            _write(text, tmp_path)
        else:
            printed |= {line: _perform(line, tmp_path, env) for line in text.splitlines()}
    assert len(printed) <= 8
    assert re.search(r"COMPLETED +shop\.greet", printed["python manage.py jobs list"])
    assert "migrations: all applied" in printed["python manage.py doctor"]


def _write(text: str, home: Path) -> None:
    place = PLACE.match(text)
    assert place, f"which file is this?\n{text}"
    path, how = home / place[1], place[2]
    assert path.exists() == (how == "at the end")
    with path.open("a") as file:
        file.write(text)


def _perform(line: str, home: Path, env: dict[str, str]) -> str:
    if line.startswith("pip install"):  # the wheel is installed already
        return ""
    return run(["sh", "-ec", line], cwd=home, env=env)
