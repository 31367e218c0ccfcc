"""A PostgreSQL of our own that can be crashed and started again, and a wire to it that can go dead."""

from __future__ import annotations

import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import postgres


class Server:
    """Durable as in production: what it has acknowledged must survive `crash`."""

    def __init__(self, home: Path, settings: tuple[str, ...] = ()) -> None:
        self.home, self.settings = home, settings
        self.password, self.port = secrets.token_urlsafe(16), postgres._free_port()
        self.binaries = postgres._prepare(home, self.password)
        self.start()

    @property
    def url(self) -> str:
        return self.url_through(self.port)

    def url_through(self, port: int) -> str:
        return f"postgres://postgres:{self.password}@127.0.0.1:{port}/postgres"

    @property
    def log(self) -> Path:
        return self.home / "log"

    def start(self) -> None:
        self.process = postgres._start(self.binaries, self.home, self.port, self.settings)
        postgres._await_ready(self.binaries, self.process, self.port, self.log)

    def crash(self) -> None:
        """As `pg_ctl stop -m immediate`: nothing is written down, no client is told; recovery comes with the start."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()


@contextmanager
def server(*settings: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="jobscheduler-chaos-") as name:
        made = Server(Path(name), settings)
        try:
            yield made
        finally:
            made.stop()


class Wire:
    """Forward bytes to a port, until it is cut (peers see the end) or goes dead (nothing arrives any more)."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self._alive: threading.Event = _set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._dead: list[threading.Event] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def go_dead(self) -> None:
        """All connections, new ones too, are accepted and swallow everything."""
        self._alive.clear()

    def revive(self) -> None:
        """New connections work. The old ones stay dead for ever, as behind a router that has forgotten them."""
        self._dead.append(self._alive)
        self._alive = _set()

    def cut_connections(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        self.listening.close()
        self.cut_connections()
        for item in (*self._dead, self._alive):
            item.set()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near, self._alive), daemon=True).start()

    def _join(self, near: socket.socket, alive: threading.Event) -> None:
        alive.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            near.close()
            return
        self._pairs.append((near, far))
        threading.Thread(target=_pump, args=(near, far, alive), daemon=True).start()
        _pump(far, near, alive)


def _pump(source: socket.socket, sink: socket.socket, alive: threading.Event) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            alive.wait()
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
