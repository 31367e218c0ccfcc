"""A small proxy that forwards every request and loses some of the answers, as networks do."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LossRule = Callable[[str, int], bool]  # by the path, and how often it was asked before


def lose_first_response_to(*verbs: str) -> LossRule:
    """The first answer on each path that ends so."""
    return lambda path, before: before == 0 and path.rstrip("/").endswith(verbs)


class LossyProxy:
    """`lost` counts the answers that were thrown away, by the last word of their path."""

    def __init__(self, url: str, loses: LossRule) -> None:
        target = urlsplit(url)
        assert target.hostname is not None
        self.host, self.port, self.loses = target.hostname, target.port, loses
        self.lost: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{target.path}"

    def __enter__(self) -> LossyProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _forward(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[Any, bytes] | None:
        """The answer, or None if it got lost on the way back. It was given in any case."""
        upstream = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            upstream.request(method, path, body or None, headers)
            answer = upstream.getresponse()
            content = answer.read()
        finally:
            upstream.close()
        before, self._asked[path] = self._asked[path], self._asked[path] + 1
        if self.loses(path, before):
            self.lost[path.rstrip("/").rpartition("/")[2]] += 1
            return None
        return answer, content

    def _handler(proxy: LossyProxy) -> type[BaseHTTPRequestHandler]:  # noqa: N805 — `self` is the handler's in here
        class Handler(BaseHTTPRequestHandler):
            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                kept = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                found = proxy._forward(self.command, self.path, body, kept)
                self.close_connection = True
                if found is None:
                    return
                answer, content = found
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.getheader("Content-Type", ""))
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = forward  # noqa: N815

            def log_message(self, *_: Any) -> None:
                """Nothing to say."""

        return Handler
