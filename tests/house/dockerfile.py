"""A Dockerfile, read: its stages and their instructions; and a rehearsal of its steps without Docker.

    python -m tests.house.dockerfile

performs them in an empty directory — copies, installs, collects, starts the image's command — and asks its health.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
WORDS = ("ENV", "RUN", "COPY", "WORKDIR", "USER", "EXPOSE", "HEALTHCHECK", "CMD", "ENTRYPOINT", "ARG", "LABEL")
START_SEC = 60.0


@dataclass
class Stage:
    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def said(self, word: str) -> list[str]:
        return [rest for step, rest in self.steps if step == word]


def stages(text: str) -> list[Stage]:
    found: list[Stage] = []
    joined = re.sub(r"\\\n\s*", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name))
        elif word in WORDS:
            found[-1].steps.append((word, rest))
        else:
            raise ValueError(f"not an instruction: {line}")
    return found


def rehearse(home: Path) -> str:
    """What the health check of the started command answered."""
    env = {"PATH": f"{home}/venv/bin:{os.environ['PATH']}", "HOME": f"{home}/app", "LANG": "C.UTF-8"}
    (home / "app").mkdir()
    for stage in stages((CHECKOUT / "Dockerfile").read_text()):
        here = home
        for word, rest in stage.steps:
            if word == "WORKDIR":
                here = Path(moved(rest, home))
                here.mkdir(exist_ok=True)
            elif word == "ENV":
                env |= {name: moved(value, home) for name, value in pairs(rest) if name != "PATH"}
            elif word == "COPY" and "--from" not in rest:
                copy(rest.split(), here)
            elif word == "RUN" and not rest.startswith("useradd"):
                print(f"RUN {rest}", flush=True)
                subprocess.run(["sh", "-ec", moved(rest, home)], cwd=here, env=env, check=True)
    return started(json.loads(stages((CHECKOUT / "Dockerfile").read_text())[-1].said("CMD")[-1]), home / "app", env)


def started(command: list[str], here: Path, env: dict[str, str]) -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**env, "SECRET_KEY": "only for the rehearsal", "DATABASE_URL": f"sqlite:///{here}/db.sqlite3"}
    subprocess.run(["django-admin", "migrate", "--verbosity=0"], cwd=here, env=env, check=True)
    process = subprocess.Popen([*command, "--port", str(port)], cwd=here, env=env, start_new_session=True)
    try:
        return answer(f"http://127.0.0.1:{port}/healthz", process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_SEC)


def answer(url: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SEC
    while process.poll() is None and time.monotonic() < deadline:
        found = subprocess.run(["curl", "--silent", "--fail", url], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout
        time.sleep(0.2)
    raise RuntimeError("the image's command never became healthy")


def moved(text: str, home: Path) -> str:
    """Absolute places of the image, below `home`."""
    return re.sub(r"(?<![\w./-])/(venv|src|app)\b", rf"{home}/\1", text)


def pairs(rest: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in shlex.split(rest))]


def copy(words: list[str], here: Path) -> None:
    *sources, target = words
    for source in sources:
        place = here / target / Path(source).name if target.endswith("/") else here / target
        if (CHECKOUT / source).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(CHECKOUT / source, place, dirs_exist_ok=True, ignore=ignore)
        else:
            shutil.copy(CHECKOUT / source, place)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="jobscheduler-image-") as made:
        print(rehearse(Path(made)))
        sys.exit(0)
