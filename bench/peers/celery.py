"""celery on its own Redis server: two prefork processes, results ignored. Its queue is not durable."""

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


def find_missing() -> str | None:
    return None if shutil.which("redis-server") else "redis-server is not installed"


@contextmanager
def server() -> Iterator[str]:
    """Start Redis on a free port, yield its URL, and stop it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="jobscheduler-redis-") as home:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", home, "--save", ""]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for_redis(url)
            yield url
        finally:
            process.terminate()
            process.wait(START_SEC)


def count_remaining(url: str) -> int:
    """Return the number of waiting jobs. Prefetched ones do not matter: only the middle of the drain is measured."""
    host, port = url.removeprefix("redis://").removesuffix("/0").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"LLEN celery\r\n")
        return int(connection.recv(100).strip().removeprefix(b":"))


def _wait_for_redis(url: str) -> None:
    deadline = time.monotonic() + START_SEC
    while True:
        try:
            count_remaining(url)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def create_app() -> Any:
    import celery

    app = celery.Celery("bench", broker=os.environ["PEER_URL"])
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, task_acks_late=False)
    app.task(name="noop")(noop)  # celery does not accept a lambda as a task
    return app


def noop() -> None:
    pass


def enqueue_jobs(jobs: int) -> None:
    app = create_app()
    for _ in range(jobs):
        app.send_task("noop")


def run_worker() -> None:
    create_app().worker_main(
        ["worker", f"--concurrency={PROCESSES}", "--loglevel=ERROR", "--without-gossip", "--without-mingle"]
    )
