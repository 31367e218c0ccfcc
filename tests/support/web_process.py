"""A web process of the product on a free port, and direct calls to it from threads."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from jobs.management.ports import listen
from jobs.services import tokens
from tests.support.worker_processes import FAST_SETTINGS, MANAGE, START_SEC, Fleet, wait_until
from tests.support.worker_processes import to_environ as as_environ

CALL_SEC = 120


class WebProcess:
    """A web process that is killed at the end of its `with` block."""

    def __init__(self, fleet: Fleet, settings: dict[str, Any] | None = None) -> None:
        _, self._token = tokens.create(f"direct tests {uuid4()}", tenant="default", scopes=("submit",))
        listening = listen("127.0.0.1", 0)
        descriptor, self.port = listening.fileno(), listening.getsockname()[1]
        self.log_path: Path = fleet.home / f"web-{self.port}.log"
        with self.log_path.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(MANAGE), "runscheduler", f"--socket={descriptor}", "--threads=8"],
                env={**fleet.env, **as_environ(FAST_SETTINGS if settings is None else settings)},
                cwd=MANAGE.parent,
                pass_fds=[descriptor],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        listening.close()

    def __enter__(self) -> WebProcess:
        wait_until(self.is_healthy, START_SEC, lambda: f"the web process serves:\n{self.log_path.read_text()}")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(START_SEC)

    def call(self, job_type: str, params: dict[str, Any]) -> DirectCall:
        return DirectCall(f"http://127.0.0.1:{self.port}/api/direct/{job_type}", self._token, params)

    def send_and_hang_up(self, job_type: str, params: dict[str, Any], is_received: Callable[[], object]) -> None:
        """Make a direct call and close its connection once it is received."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_SEC)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        client.request("POST", f"/api/direct/{job_type}", json.dumps({"params": params}), headers)
        wait_until(is_received, what="the direct call is received")
        client.close()

    def is_healthy(self) -> bool:
        """Return whether a probe is answered within its timeout."""
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5).status == 200)
        except OSError:
            return False


class DirectCall(threading.Thread):
    """One request in a thread; `response` is its document, or the error."""

    def __init__(self, url: str, token: str, params: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._request = urllib.request.Request(url, json.dumps({"params": params}).encode(), headers)
        self.response: Any = None
        self.start()

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=CALL_SEC) as response:
                self.response = json.load(response)
        except urllib.error.HTTPError as error:
            self.response = json.load(error)
        except OSError as error:
            self.response = error

    def wait_for_response(self) -> Any:
        self.join(CALL_SEC)
        assert not self.is_alive(), "the direct call was never answered"
        return self.response
