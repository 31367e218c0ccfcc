"""The web server of `runscheduler`: waitress, with bounds on what a caller can make it keep before it is authenticated.

A body that is announced as too large is refused at once; one without a length is refused at the limit.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from socket import socket
from typing import Any

from waitress import create_server
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser

from jobs.conf import conf

CONNECTION_LIMIT = 1000
OPEN_FILES = 4096  # a connection needs a descriptor, and one more while its body is in a temporary file
IDLE_CONNECTION_SEC = 30
MAX_HEAD_BYTES = 64 * 1024
FRAMING_BYTES = 64 * 1024  # the server also counts the length lines of a chunked body


class RequestParser(HTTPRequestParser):
    """Waitress would answer "Expect: 100-continue" by asking for a body that it has refused."""

    _expects_continue = False

    @property
    def expect_continue(self) -> bool:
        return self._expects_continue and self.error is None

    @expect_continue.setter
    def expect_continue(self, value: bool) -> None:
        self._expects_continue = value


class Channel(HTTPChannel):
    parser_class = RequestParser


def serve_application(application: Callable[..., Any], server_socket: socket, *, threads: int) -> None:
    """Serve until SystemExit; requests in progress get a few seconds to finish."""
    _raise_open_files_limit()
    server = create_server(
        application,
        sockets=[server_socket],
        threads=threads,
        # The site decides which proxy headers to trust (SECURE_PROXY_SSL_HEADER), as with any other server.
        clear_untrusted_proxy_headers=False,
        max_request_body_size=max(conf.MAX_BODY_BYTES, conf.BULK_BODY_BYTES) + FRAMING_BYTES,
        max_request_header_size=MAX_HEAD_BYTES,
        connection_limit=CONNECTION_LIMIT,
        channel_timeout=IDLE_CONNECTION_SEC,
        asyncore_use_poll=True,  # select() fails for descriptors above 1023
        ident=None,
    )
    server.channel_class = Channel
    server.run()


def _raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
