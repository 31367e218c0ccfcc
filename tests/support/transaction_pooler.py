"""A transaction pooler in front of PostgreSQL, as small as one can be: each transaction gets any of a few sessions.

As with pgbouncer's `pool_mode = transaction`, clients share the settings, prepared statements and LISTEN of sessions,
and what a session sends while no client uses it (notifications) is dropped.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import struct
import threading
from contextlib import suppress

import psycopg

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
REPORTED = ("server_version", "client_encoding", "standard_conforming_strings", "integer_datetimes", "TimeZone")
ANSWERED = (b"Q", b"S", b"F")  # Query, Sync, FunctionCall: the server answers each with ReadyForQuery
TERMINATE, READY_FOR_QUERY, IDLE = b"X", b"Z", b"I"


class TransactionPooler:
    """Listens on `port`, with a few sessions on the server that `url` names; closed at the end of its `with` block."""

    def __init__(self, url: str, *, sessions: int = 3) -> None:
        self._url = url
        self._owners: list[psycopg.Connection] = []
        self._idle: queue.LifoQueue[socket.socket] = queue.LifoQueue()
        for _ in range(sessions):
            self._idle.put(self._open_session())
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> TransactionPooler:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        for owner in self._owners:
            owner.close()

    def _open_session(self) -> socket.socket:
        """Let the driver log in, then use its socket."""
        owner = psycopg.connect(self._url, autocommit=True)
        self._owners.append(owner)
        session = socket.socket(fileno=os.dup(owner.fileno()))
        session.setblocking(True)
        return session

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            if self._greet(client):
                while self._serve_transaction(client):
                    pass

    def _greet(self, client: socket.socket) -> bool:
        """Log a client in without asking for its password; return whether it stays."""
        while True:
            (length,) = struct.unpack("!i", _receive(client, 4))
            (code,) = struct.unpack("!i", _receive(client, length - 4)[:4])
            if code == CANCEL_REQUEST:
                return False
            if code not in (SSL_REQUEST, GSS_REQUEST):
                break
            client.sendall(b"N")
        client.sendall(_message(b"R", struct.pack("!i", 0)))
        for name in REPORTED:
            value = self._owners[0].info.parameter_status(name) or ""
            client.sendall(_message(b"S", f"{name}\0{value}\0".encode()))
        client.sendall(_message(b"K", struct.pack("!ii", 0, 0)) + _message(READY_FOR_QUERY, IDLE))
        return True

    def _serve_transaction(self, client: socket.socket) -> bool:
        """Lend the client a session until it is idle again; return whether the client stays."""
        kind, message = _receive_message(client)
        if kind == TERMINATE:
            return False
        session = self._idle.get()
        try:
            _drop_pending(session)
            _relay_transaction(client, session, kind, message)
        except (OSError, EOFError):  # one of them left in the middle: the session may be in a transaction
            session.close()
            session = self._open_session()
            return False
        finally:
            self._idle.put(session)
        return True


def _relay_transaction(client: socket.socket, session: socket.socket, kind: bytes, message: bytes) -> None:
    """Relay messages, beginning with this one, until the session is in no transaction and has answered everything."""
    session.sendall(message)
    unanswered = int(kind in ANSWERED)
    while True:
        ready, _, _ = select.select([session, client], [], [])
        if session in ready:
            kind, message = _receive_message(session)
            client.sendall(message)
            unanswered -= kind == READY_FOR_QUERY
            if kind == READY_FOR_QUERY and not unanswered and message[-1:] == IDLE:
                return
        else:
            kind, message = _receive_message(client)
            if kind == TERMINATE:
                raise EOFError
            session.sendall(message)
            unanswered += kind in ANSWERED


def _drop_pending(session: socket.socket) -> None:
    while select.select([session], [], [], 0)[0]:
        _receive_message(session)


def _receive_message(source: socket.socket) -> tuple[bytes, bytes]:
    """Return the kind of a message, and all of it."""
    head = _receive(source, 5)
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], head + _receive(source, length - 4)


def _receive(source: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = source.recv(size - len(received))
        if not part:
            raise EOFError
        received += part
    return bytes(received)


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!i", len(content) + 4) + content
