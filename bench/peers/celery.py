"""celery on a Redis of its own: two prefork processes, results ignored. Its queue can be lost; ours cannot."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

JOBS = 10_000
WORKERS = 1  # it starts its processes itself
PROCESSES = 2
START_SEC = 20.0


def missing() -> str | None:
    return None if shutil.which("redis-server") else "no redis-server here"


@contextmanager
def server() -> Iterator[str]:
    """A Redis on a free port, gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="jobscheduler-redis-") as home:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", home, "--save", ""]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _await_answer(url)
            yield url
        finally:
            process.terminate()
            process.wait(START_SEC)


def left(url: str) -> int:
    """Waiting ones; the prefetched handful at the end is beside the middle that is measured."""
    host, port = url.removeprefix("redis://").removesuffix("/0").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"LLEN celery\r\n")
        return int(connection.recv(100).strip().removeprefix(b":"))


def _await_answer(url: str) -> None:
    deadline = time.monotonic() + START_SEC
    while True:
        try:
            left(url)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def app() -> Any:
    import celery

    made = celery.Celery("bench", broker=os.environ["PEER_URL"])
    made.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, task_acks_late=False)
    made.task(name="noop")(noop)  # a lambda is not a task to it
    return made


def noop() -> None:
    pass


def prepare(jobs: int) -> None:
    made = app()
    for _ in range(jobs):
        made.send_task("noop")


def work() -> None:
    app().worker_main(
        ["worker", f"--concurrency={PROCESSES}", "--loglevel=ERROR", "--without-gossip", "--without-mingle"]
    )
