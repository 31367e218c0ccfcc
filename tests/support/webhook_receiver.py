"""A real receiver on loopback, of any behaviour: it verifies what it gets with the library that receivers use."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

Behaviour = Callable[["Handler"], None]
MEGABYTE = b"x" * 1024 * 1024


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as it came in."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def type(self) -> str:
        return str(self.document["type"])

    def verify(self, secret: str) -> Any:
        """Verify the signature; raise if none of the signatures is made with this secret."""
        return Webhook(secret).verify(self.body, self.headers)


@dataclass
class Receiver:
    behaviour: Behaviour
    seen: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    at_once: int = 0
    most_at_once: int = 0
    names: list[str | None] = field(default_factory=list)  # that TLS clients asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.seen]


class Handler(BaseHTTPRequestHandler):
    receiver: Receiver
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        with self.receiver.lock:
            self.receiver.connections += 1

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # its sender was killed in the middle of it: nothing has arrived
            self.close_connection = True
            return
        with self.receiver.lock:
            self.receiver.seen.append(ReceivedRequest(self.path, dict(self.headers), body))
            self.receiver.at_once += 1
            self.receiver.most_at_once = max(self.receiver.most_at_once, self.receiver.at_once)
        try:
            with suppress(OSError):  # a sender that has seen enough hangs up
                self.receiver.behaviour(self)
        finally:
            self.close_connection = True
            with self.receiver.lock:
                self.receiver.at_once -= 1

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def run_receiver(behaviour: Behaviour | None = None, *, certificate: Path | None = None) -> Iterator[Receiver]:
    """Run a receiver in a thread; with a certificate, over TLS."""
    made = Receiver(behaviour or respond(200))
    handler = type("Bound", (Handler,), {"receiver": made})
    with _Server(("127.0.0.1", 0), handler) as server:
        if certificate is not None:
            server.socket = _wrap_in_tls(server.socket, certificate, made)
        made.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.closing.set()
            server.shutdown()
            thread.join()


def _wrap_in_tls(listening: socket.socket, certificate: Path, made: Receiver) -> socket.socket:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _sock, name, _context: made.names.append(name)
    return context.wrap_socket(listening, server_side=True)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        return


# ---------------------------------------------------------------------- behaviours


def respond(code: int, body: bytes = b"", **headers: str) -> Behaviour:
    def answer(handler: Handler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def respond_in_turn(*behaviours: Behaviour) -> Behaviour:
    """Behave in the given order, then as the last one for all later requests."""
    remaining = list(behaviours)

    def answer(handler: Handler) -> None:
        with handler.receiver.lock:
            behaviour = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        behaviour(handler)

    return answer


def hang(handler: Handler) -> None:
    handler.receiver.closing.wait()


def drip_head(handler: Handler) -> None:
    _drip(handler, b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 10_000)


def drip_body(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\n")
    _drip(handler, b"a" * 10_000)


def flood_body(handler: Handler) -> None:
    """Send a gigabyte."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _ in range(1024):
        handler.wfile.write(MEGABYTE)


def flood_chunks(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(1024):
        handler.wfile.write(b"100000\r\n" + MEGABYTE + b"\r\n")


def flood_head(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(1_000_000):
        handler.wfile.write(b"X-%d: %s\r\n" % (number, b"x" * 4000))


def flood_continues(handler: Handler) -> None:
    for _ in range(1_000_000):
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def close_early(handler: Handler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def close_within_head(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    handler.connection.shutdown(socket.SHUT_RDWR)


def send_garbage(handler: Handler) -> None:
    handler.wfile.write(bytes(range(256)) * 16)


def send_smtp_banner(handler: Handler) -> None:
    handler.wfile.write(b"220 mail.example.org ESMTP ready\r\n")


def send_binary_body(handler: Handler) -> None:
    respond(500, b"\x00\xff\xfe zero and half \xed\xa0\x80 letters", X_Odd="caf\xe9 \x01")(handler)


def _drip(handler: Handler, text: bytes) -> None:
    """Send a few bytes a second; a sender that waits for the end waits for hours."""
    for number in range(len(text)):
        handler.wfile.write(text[number : number + 1])
        handler.wfile.flush()
        if handler.receiver.closing.wait(0.2 if number > 5 else 0.05):
            return
