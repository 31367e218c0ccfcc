"""One request to one judged address: bounded in time, in the size of the answer's head and body, and in where it goes.

No redirects, no proxies but WEBHOOK_PROXY, no names: the connection is made to an address, while the Host header, SNI
and the certificate check keep the name.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from django.utils.translation import gettext as _
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection, ProxyConfig
from urllib3.util import parse_url

from jobs.conf import conf
from webhooks import url_guard

BODY_BYTES = HEAD_BYTES = 64 * 1024
SLACK_BYTES = 16 * 1024  # what framing and a last full buffer may add
ADDRESSES = 3  # how many of a name's addresses are tried


class NotAnswered(Exception):
    """No usable answer; says why."""


@dataclass(frozen=True)
class Answer:
    status: int
    head: str
    body: bytes
    retry_after: str | None


def request(url: str, headers: Mapping[str, str], body: bytes, *, deadline: float, method: str = "POST") -> Answer:
    """Make one request, to an address that was judged; raise addresses.Refused or NotAnswered.

    `deadline` is by the monotonic clock, for all of it: resolving, connecting, sending, and however slowly the answer
    drips.
    """
    place = url_guard.destination(url)
    found = url_guard.checked(place, deadline - time.monotonic())
    wire = _Wire(deadline, HEAD_BYTES + BODY_BYTES + SLACK_BYTES)
    connection = None
    try:
        connection = _connection(place, found, wire, conf.WEBHOOK_PROXY)
        sent = {"Host": place.host_header, "Accept-Encoding": "identity", **headers}
        with suppress(BrokenPipeError):  # who does not want all of it may still have answered
            connection.request(method, place.target, body, sent)
        response = http.client.HTTPConnection.getresponse(connection)
        if wire.is_over:  # the library takes what there was of a head for the whole
            raise http.client.RemoteDisconnected("within the head")
        return Answer(response.status, _head(response), _body(response), response.headers.get("Retry-After"))
    except (OSError, http.client.HTTPException, exceptions.HTTPError, ValueError) as error:
        raise NotAnswered(_why(error, wire)) from None
    finally:
        for opened in (connection, wire.sock):
            if opened is not None:
                opened.close()


class _TooMuch(OSError):
    pass


class _Wire:
    """What the HTTP library needs of a socket. Every wait is bounded by the one deadline, every byte is counted."""

    def __init__(self, deadline: float, most_bytes: int) -> None:
        self.deadline = deadline
        self.left_bytes = most_bytes
        self.is_over = False  # the other side has said all that it will say
        self.sock: Any = None

    def left_sec(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def sendall(self, data: Any) -> None:
        self.sock.settimeout(self.left_sec())
        self.sock.sendall(data)

    def recv_into(self, buffer: Any) -> int:
        self.sock.settimeout(self.left_sec())
        received: int = self.sock.recv_into(buffer)
        self.is_over = received == 0
        self.left_bytes -= received
        if self.left_bytes < 0:
            raise _TooMuch
        return received

    def makefile(self, *_args: Any, **_kwargs: Any) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self))

    def settimeout(self, _seconds: float | None) -> None:
        """Ours is the only one."""

    def close(self) -> None:
        """Leave the socket to `request`: the library closes it once the head is read, if the receiver will."""


class _Incoming(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        self.wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self.wire.recv_into(buffer)


class _Pinned(HTTPConnection):
    """Connects to the addresses it was given, in turn, and speaks through the wire."""

    addresses: Sequence[str]
    wire: _Wire
    tls_name: str | None = None  # of a proxy that is spoken to over TLS

    def _new_conn(self) -> socket.socket:
        failure: OSError = ConnectionRefusedError()
        for address in self.addresses[:ADDRESSES]:
            made = None
            try:
                made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
                made.settimeout(self.wire.left_sec())
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.connect((address, self.port))
                made.settimeout(self.wire.left_sec())  # for the handshake
            except OSError as error:
                if made is not None:
                    made.close()
                failure = error
            else:
                return made if self.tls_name is None else _trusted().wrap_socket(made, server_hostname=self.tls_name)
        raise failure

    def connect(self) -> None:
        super().connect()
        self.wire.sock, self.sock = self.sock, self.wire


class _PinnedTls(_Pinned, HTTPSConnection):
    pass


def _connection(place: url_guard.Destination, found: Sequence[str], wire: _Wire, proxy: str | None) -> _Pinned:
    secure: dict[str, Any] = {}
    if place.scheme == "https":
        secure = {"ssl_context": _trusted(), "server_hostname": place.host}
    kind = _PinnedTls if secure else _Pinned
    if proxy is None:
        connection = kind(found[0], place.port, **secure)
    else:
        connection, found = _through(proxy, kind, secure, found[0], place.port)
    connection.addresses, connection.wire = found, wire
    connection.timeout = max(wire.deadline - time.monotonic(), 0.01)
    return connection


def _through(proxy: str, kind: Any, secure: dict[str, Any], address: str, port: int) -> tuple[_Pinned, list[str]]:
    """A tunnel to the judged address. The proxy is the operator's own, so its name is simply looked up."""
    parts = urlsplit(proxy)
    host, own_port = parts.hostname or "", parts.port or url_guard.DEFAULT_PORTS[parts.scheme]
    twice = parts.scheme == "https" and bool(secure)  # TLS within TLS is for the library to arrange
    config = ProxyConfig(_trusted() if twice else None, False, None, None)
    connection = kind(host, own_port, proxy=parse_url(proxy), proxy_config=config, **secure)
    if parts.scheme == "https" and not twice:
        connection.tls_name = host
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
    headers = {"Proxy-Authorization": f"Basic {base64.b64encode(login).decode()}"} if parts.username else {}
    connection.set_tunnel(address, port, headers, scheme="https" if twice else "http")
    found = socket.getaddrinfo(host, own_port, type=socket.SOCK_STREAM)
    return connection, list(dict.fromkeys(str(entry[4][0]) for entry in found))


@cache
def _trusted() -> ssl.SSLContext:
    """Made once: reading the certificates of all authorities takes longer than a delivery."""
    return ssl.create_default_context()


def _head(response: http.client.HTTPResponse) -> str:
    lines = [f"HTTP/{response.version / 10:.1f} {response.status} {response.reason or ''}".rstrip()]
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in response.headers.items())])


def _body(response: http.client.HTTPResponse) -> bytes:
    """As much as came in time, and no more than we keep: the status was the answer."""
    found = bytearray()
    with suppress(OSError, http.client.HTTPException, ValueError):
        while len(found) < BODY_BYTES and (part := response.read1(BODY_BYTES - len(found))):
            found += part
    return bytes(found)


def _why(error: Exception, wire: _Wire) -> str:
    if isinstance(error, TimeoutError | exceptions.TimeoutError) or time.monotonic() >= wire.deadline:
        return _("did not answer in time")
    if isinstance(error, _TooMuch):
        return _("sent an answer with too large a head")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _("has a certificate that does not verify: %s") % error.verify_message
    if isinstance(error, ssl.SSLError):
        return _("TLS failed: %s") % (error.reason or type(error).__name__)
    if isinstance(error, ConnectionRefusedError):
        return _("refused the connection")
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
        return _("closed the connection without an answer")
    if isinstance(error, http.client.HTTPException):
        return _("did not answer in proper HTTP: %s") % (error.__str__() or type(error).__name__)
    return _("could not be reached: %s") % (error.__str__() or type(error).__name__)
