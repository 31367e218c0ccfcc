"""A Dockerfile, read: its stages and their instructions; and a rehearsal of its steps without Docker.

    make rehearse

performs them in an empty directory — copies, installs, collects, starts the image's command — and its health check.
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

    def list_arguments(self, word: str) -> list[str]:
        return [rest for step, rest in self.steps if step == word]


def stages(text: str) -> list[Stage]:
    found: list[Stage] = []
    joined = re.sub(r"\\\n\s*", " ", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name))
        elif word == "ARG" and not found:
            continue  # a variable of the FROM lines
        elif word in WORDS:
            found[-1].steps.append((word, rest))
        else:
            raise ValueError(f"not an instruction: {line}")
    return found


def health_check(image: Stage, port: int) -> list[str]:
    """The words of the image's health check, for a server on another port."""
    words: list[str] = json.loads(image.list_arguments("HEALTHCHECK")[-1].partition("CMD ")[2])
    return [word.replace(":8000/", f":{port}/") for word in words]


def rehearse(home: Path) -> None:
    """Raises where the image would not be built, or would not become healthy."""
    env = {"PATH": f"{home}/venv/bin:{os.environ['PATH']}", "HOME": f"{home}/app", "LANG": "C.UTF-8"}
    (home / "app").mkdir()
    found = stages((CHECKOUT / "Dockerfile").read_text())
    for stage in found:
        here = home
        for word, rest in stage.steps:
            if word == "WORKDIR":
                here = Path(move_below(rest, home))
                here.mkdir(exist_ok=True)
            elif word == "ENV":
                env |= {name: move_below(value, home) for name, value in pairs(rest) if name != "PATH"}
            elif word == "COPY" and "--from" not in rest:
                copy(rest.split(), here)
            elif word == "RUN" and not rest.startswith("useradd"):
                print(f"RUN {rest}", flush=True)
                subprocess.run(["sh", "-ec", move_below(rest, home)], cwd=here, env=env, check=True)
    start(found[-1], home / "app", env)


def start(image: Stage, here: Path, env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = {"ALLOWED_HOSTS": "scheduler.example.com", "HTTPS": "True"}
    env = {
        **env,
        **site,
        "SECRET_KEY": "only for the rehearsal of the image, at home",
        "DATABASE_URL": f"sqlite:///{here}/db.sqlite3",
    }
    subprocess.run(["django-admin", "migrate", "--verbosity=0"], cwd=here, env=env, check=True)
    command = [*json.loads(image.list_arguments("CMD")[-1]), f"--port={port}"]
    print(f"CMD {shlex.join(command)}", flush=True)
    process = subprocess.Popen(command, cwd=here, env=env, start_new_session=True)
    try:
        await_health(health_check(image, port), env, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_SEC)


def await_health(check: list[str], env: dict[str, str], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SEC
    while process.poll() is None and time.monotonic() < deadline:
        if subprocess.run(check, env=env, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return
        time.sleep(0.2)
    raise RuntimeError("the image's command never became healthy")


def move_below(text: str, home: Path) -> str:
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
        rehearse(Path(made))
    print("The image's command became healthy.")
