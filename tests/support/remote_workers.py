"""Web server processes and the example workers on the database of a test; all are killed at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.db import connection

from jobs.services import tokens
from tests.postgres import _die_with_parent
from tests.support.worker_processes import FAST_SETTINGS, MANAGE, START_SEC, WAIT_SEC, Fleet, to_environ, wait_until

EXAMPLES = MANAGE.parent / "examples"
HANDLERS = Path(__file__).with_name("remote_handlers.py")
ADDON = "tools"
POLL_SEC = 0.05
SHELL_TOOLS = ("curl", "jq")


class ChildProcess:
    """One process in a session of its own. What it prints goes to a file."""

    def __init__(self, name: str, command: Iterable[str], env: dict[str, str], home: Path, **options: Any) -> None:
        self.name, self.log_path = name, home / f"{name}.log"
        with self.log_path.open("w") as out:
            self.process = subprocess.Popen(
                list(command),
                env=env,
                cwd=MANAGE.parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                **options,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self.log_path.read_text()

    def signal(self, number: int) -> None:
        """Only ever to the process that we started and have not waited for yet."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process group, which includes all that the process started."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(START_SEC)

    def wait_for_end(self, seconds: float = WAIT_SEC) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {seconds:g} s:\n{self.output}") from None


class RemoteWorkers:
    """Web servers and remote workers beside the local workers of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.programs: list[ChildProcess] = []
        self.token = tokens.create(f"crew {uuid4()}", tenant="default", scopes=["work", "submit", "read"])[1]

    def __enter__(self) -> RemoteWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.kill()

    def start_server(self, *, settings: dict[str, Any] = FAST_SETTINGS, sabotage: str = "") -> str:
        """Start a web server without a worker; return the URL of its API."""
        env = {**self.fleet.env, **to_environ(settings), "SABOTAGE": sabotage}
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port, descriptor = listening.getsockname()[1], listening.fileno()
            command = [sys.executable, str(MANAGE), "runscheduler", f"--socket={descriptor}", "--threads=8"]
            web = self._start("web", command, env, pass_fds=[descriptor])
        wait_until(lambda: _is_healthy(port) or web.process.poll() is not None, START_SEC, lambda: web.output)
        return f"http://127.0.0.1:{port}/api"

    def start_python_worker(self, url: str, *options: str, name: str = "snake") -> ChildProcess:
        arguments = ["--url", url, "--addon", ADDON, "--worker-id", name, "--poll-sec", str(POLL_SEC), *options]
        command = [sys.executable, str(EXAMPLES / "remote_worker.py"), "--handlers", str(HANDLERS), *arguments]
        return self._worker(name, command)

    def start_shell_worker(self, url: str, *command: str, name: str = "shell") -> ChildProcess:
        program = command or (sys.executable, "-I", str(HANDLERS))
        arguments = ["/bin/sh", str(EXAMPLES / "remote_worker.sh"), url, ADDON, *program]
        return self._worker(name, arguments, WORKER_ID=name, POLL_SEC=str(POLL_SEC))

    def logs(self) -> str:
        text = "\n".join(f"--- {process.log_path.name}\n{process.output[-6000:]}" for process in self.programs)
        return f"{text}\n{self.fleet.logs()[-6000:]}"

    def _worker(self, name: str, command: list[str], **extra: str) -> ChildProcess:
        worker = self._start(name, command, {**self.fleet.env, "SCHEDULER_TOKEN": self.token, **extra})
        wait_until(lambda: " started" in worker.output, START_SEC, lambda: worker.output)
        return worker

    def _start(self, name: str, command: list[str], env: dict[str, str], **options: Any) -> ChildProcess:
        number = sum(process.name.startswith(name) for process in self.programs)
        program = ChildProcess(f"{name}-{number}" if number else name, command, env, self.fleet.home, **options)
        self.programs.append(program)
        connection.close()  # a test that waits for processes should not keep the database waiting for it
        return program


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
