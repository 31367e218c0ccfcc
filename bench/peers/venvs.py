"""A virtual environment for each peer, created once, outside of version control."""

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


def get_python(peer: str) -> Path:
    """Return the interpreter of the peer's environment; create the environment if it does not exist."""
    home = Path(os.environ.get(VENVS) or DEFAULT) / peer
    python, marker = home / "bin" / "python", home / ".installed"
    if not marker.exists():
        print(f"installing {peer} into {home} …", file=sys.stderr)
        _run([sys.executable, "-m", "venv", "--clear", home])
        _run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "-r", _requirements_path(peer)])
        marker.touch()
    return python


def get_version(peer: str) -> str:
    """Return the installed requirements of the peer as `name version`."""
    output = _run([get_python(peer), "-m", "pip", "--disable-pip-version-check", "list", "--format=json"])
    installed = {package["name"].lower(): package["version"] for package in json.loads(output)}
    names = [re.split(r"\W*[\[<=>]", line)[0].lower() for line in _requirements_path(peer).read_text().split()]
    return ", ".join(f"{name} {installed[name]}" for name in names if name in installed)


def _requirements_path(peer: str) -> Path:
    return Path(__file__).with_name(f"requirements-{peer}.txt")


def _run(command: list[str | Path]) -> str:
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=INSTALL_SEC, check=True)
    return process.stdout
