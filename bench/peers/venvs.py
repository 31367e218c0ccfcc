"""An environment for each peer, made once and kept outside of version control."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from bench.processes import CHECKOUT

VENVS = "BENCH_VENVS"
DEFAULT = CHECKOUT / ".bench-venvs"
INSTALL_SEC = 600


def python_of(peer: str) -> Path:
    """The interpreter that has this peer installed."""
    home = Path(os.environ.get(VENVS) or DEFAULT) / peer
    python, done = home / "bin" / "python", home / ".installed"
    if not done.exists():
        print(f"installing {peer} into {home} …", file=sys.stderr)
        _run([sys.executable, "-m", "venv", "--clear", home])
        _run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "-r", _requirements(peer)])
        done.touch()
    return python


def version_of(peer: str) -> str:
    """What is installed, as `name version`; the first requirement is the peer itself, the next its second half."""
    listed = _run([python_of(peer), "-m", "pip", "--disable-pip-version-check", "list", "--format=json"])
    installed = {each["name"].lower(): each["version"] for each in json.loads(listed)}
    named = [re.split(r"\W*[\[<=>]", line)[0].lower() for line in _requirements(peer).read_text().split()]
    return ", ".join(f"{name} {installed[name]}" for name in named if name in installed)


def _requirements(peer: str) -> Path:
    return Path(__file__).with_name(f"requirements-{peer}.txt")


def _run(command: list[str | Path]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=INSTALL_SEC, check=True)
    return done.stdout
