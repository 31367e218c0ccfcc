"""Make one HTTP request to a checked address, bounded in time and in the size of the response.

No redirects, no proxy but WEBHOOK_PROXY. The connection is made to an address, never to a name; the Host header, SNI
and the certificate check use the name.
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

MAX_BODY_BYTES = MAX_HEAD_BYTES = 64 * 1024
FRAMING_BYTES = 16 * 1024  # allowance for chunk framing and a last full buffer
MAX_ADDRESSES = 3  # addresses of a name that are tried


class NoResponse(Exception):
    """Raised if there is no usable response, with the reason."""


@dataclass(frozen=True)
class Response:
    """A response. `head` is the status line and the headers; the body ends at MAX_BODY_BYTES."""

    status: int
    head: str
    body: bytes
    retry_after: str | None


def request(url: str, headers: Mapping[str, str], body: bytes, *, deadline: float, method: str = "POST") -> Response:
    """Make one request to a checked address; raise RejectedUrl or NoResponse.

    `deadline` is a time of the monotonic clock. It bounds resolving, connecting, sending and receiving together.
    """
    destination = url_guard.parse_destination(url)
    addresses = url_guard.resolve_allowed(destination, deadline - time.monotonic())
    bounded = _BoundedSocket(deadline, MAX_HEAD_BYTES + MAX_BODY_BYTES + FRAMING_BYTES)
    connection = None
    try:
        connection = _build_connection(destination, addresses, bounded, conf.WEBHOOK_PROXY)
        all_headers = {"Host": destination.host_header, "Accept-Encoding": "identity", **headers}
        with suppress(BrokenPipeError):  # a receiver may respond before it has read the whole body
            connection.request(method, destination.target, body, all_headers)
        response = http.client.HTTPConnection.getresponse(connection)
        if bounded.is_at_end:  # http.client accepts a head that was cut off
            raise http.client.RemoteDisconnected("within the head")
        status_line = f"HTTP/{response.version / 10:.1f} {response.status} {response.reason or ''}".rstrip()
        head = "\n".join([status_line, *(f"{name}: {value}" for name, value in response.headers.items())])
        return Response(response.status, head, _read_body(response), response.headers.get("Retry-After"))
    except (OSError, http.client.HTTPException, exceptions.HTTPError, ValueError) as error:
        raise NoResponse(_describe_error(error, bounded)) from None
    finally:
        for resource in (connection, bounded.sock):
            if resource is not None:
                resource.close()


class _ResponseTooLarge(OSError):
    pass


class _BoundedSocket:
    """A socket as http.client uses it, with one deadline for all waits and a limit on the bytes received."""

    def __init__(self, deadline: float, max_bytes: int) -> None:
        self.deadline = deadline
        self.left_bytes = max_bytes
        self.is_at_end = False  # the receiver has closed its side
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
        self.is_at_end = received == 0
        self.left_bytes -= received
        if self.left_bytes < 0:
            raise _ResponseTooLarge
        return received

    def makefile(self, *_args: Any, **_kwargs: Any) -> io.BufferedReader:
        return io.BufferedReader(_SocketReader(self))

    def settimeout(self, _seconds: float | None) -> None:
        """Ignore the library's timeouts: the deadline is the only one."""

    def close(self) -> None:
        """Leave closing to `request`: the library would close it after the head if the receiver says so."""


class _SocketReader(io.RawIOBase):
    def __init__(self, bounded: _BoundedSocket) -> None:
        self.bounded = bounded

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self.bounded.recv_into(buffer)


class _PinnedConnection(HTTPConnection):
    """Connects to the given addresses, one after another, and reads and writes through a bounded socket."""

    addresses: Sequence[str]
    bounded: _BoundedSocket
    tls_name: str | None = None  # of a proxy that is reached over TLS

    def _new_conn(self) -> socket.socket:
        failure: OSError = ConnectionRefusedError()
        for address in self.addresses[:MAX_ADDRESSES]:
            sock = None
            try:
                sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
                sock.settimeout(self.bounded.left_sec())
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.connect((address, self.port))
                sock.settimeout(self.bounded.left_sec())  # for the handshake
            except OSError as error:
                if sock is not None:
                    sock.close()
                failure = error
            else:
                if self.tls_name is None:
                    return sock
                return _tls_context().wrap_socket(sock, server_hostname=self.tls_name)
        raise failure

    def connect(self) -> None:
        super().connect()
        self.bounded.sock, self.sock = self.sock, self.bounded


class _PinnedTlsConnection(_PinnedConnection, HTTPSConnection):
    pass


def _build_connection(
    destination: url_guard.Destination, addresses: Sequence[str], bounded: _BoundedSocket, proxy: str | None
) -> _PinnedConnection:
    tls_options: dict[str, Any] = {}
    if destination.scheme == "https":
        tls_options = {"ssl_context": _tls_context(), "server_hostname": destination.host}
    connection_class = _PinnedTlsConnection if tls_options else _PinnedConnection
    if proxy is None:
        connection = connection_class(addresses[0], destination.port, **tls_options)
    else:
        connection, addresses = _build_tunnel(proxy, connection_class, tls_options, addresses[0], destination.port)
    connection.addresses, connection.bounded = addresses, bounded
    connection.timeout = max(bounded.deadline - time.monotonic(), 0.01)
    return connection


def _build_tunnel(
    proxy: str, connection_class: Any, tls_options: dict[str, Any], address: str, port: int
) -> tuple[_PinnedConnection, list[str]]:
    """Return a connection through a proxy to a checked address, and the proxy's addresses."""
    parts = urlsplit(proxy)
    proxy_host, proxy_port = parts.hostname or "", parts.port or url_guard.DEFAULT_PORTS[parts.scheme]
    is_tls_in_tls = parts.scheme == "https" and bool(tls_options)  # urllib3 implements it
    config = ProxyConfig(_tls_context() if is_tls_in_tls else None, False, None, None)
    connection = connection_class(proxy_host, proxy_port, proxy=parse_url(proxy), proxy_config=config, **tls_options)
    if parts.scheme == "https" and not is_tls_in_tls:
        connection.tls_name = proxy_host
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
    headers = {"Proxy-Authorization": f"Basic {base64.b64encode(login).decode()}"} if parts.username else {}
    connection.set_tunnel(address, port, headers, scheme="https" if is_tls_in_tls else "http")
    # WEBHOOK_PROXY is a setting, so the proxy's own addresses need no check.
    entries = socket.getaddrinfo(proxy_host, proxy_port, type=socket.SOCK_STREAM)
    return connection, list(dict.fromkeys(str(entry[4][0]) for entry in entries))


@cache
def _tls_context() -> ssl.SSLContext:
    """Return a context that is built once: loading the certificates of all authorities takes longer than a delivery."""
    return ssl.create_default_context()


def _read_body(response: http.client.HTTPResponse) -> bytes:
    """Return what arrives in time, up to MAX_BODY_BYTES. An incomplete body is no error: the status counts."""
    body = bytearray()
    with suppress(OSError, http.client.HTTPException, ValueError):
        while len(body) < MAX_BODY_BYTES and (part := response.read1(MAX_BODY_BYTES - len(body))):
            body += part
    return bytes(body)


def _describe_error(error: Exception, bounded: _BoundedSocket) -> str:
    if isinstance(error, TimeoutError | exceptions.TimeoutError) or time.monotonic() >= bounded.deadline:
        return _("did not answer in time")
    if isinstance(error, _ResponseTooLarge):
        return _("sent response headers that are too large")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _("has a certificate that does not verify: %s") % error.verify_message
    if isinstance(error, ssl.SSLError):
        return _("TLS failed: %s") % (error.reason or type(error).__name__)
    if isinstance(error, ConnectionRefusedError):
        return _("refused the connection")
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
        return _("closed the connection without an answer")
    if isinstance(error, http.client.HTTPException):
        return _("sent an invalid HTTP response: %s") % (error.__str__() or type(error).__name__)
    return _("could not be reached: %s") % (error.__str__() or type(error).__name__)
