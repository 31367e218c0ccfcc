"""The web server keeps little for callers that it does not know: no large bodies, no scarce connections."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.processes import until

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
START_SEC = 60
LIMIT = 2**20
FRAMING_BYTES = 64 * 1024
HUGE = 200 * 2**20
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"

pytestmark = pytest.mark.once


@dataclass
class WebServer:
    pid: int
    port: int

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def get_health(self) -> http.client.HTTPResponse:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with closing(client):
            client.request("GET", "/healthz")
            response = client.getresponse()
            response.read()
        return response

    def is_up(self) -> bool:
        try:
            return self.get_health().status == 200
        except OSError:
            return False

    def count_temporary_bytes(self) -> int:
        """Return the size of the files of the process that have no name."""
        sizes = []
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                if "(deleted)" in os.readlink(descriptor):
                    sizes.append(descriptor.stat().st_size)
            except OSError:
                continue  # closed meanwhile
        return sum(sizes)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """A web server without a database: nothing here comes as far as to need one."""
    home = tmp_path_factory.mktemp("web")
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "jobscheduler.settings",
        "ENV_FILE": "",
        "SECRET_KEY": "s" * 32,
        "DATABASE_URL": f"sqlite:///{home}/none/db.sqlite3",
        "JOBSCHEDULER_MAX_BODY_BYTES": str(LIMIT),
        "JOBSCHEDULER_BULK_BODY_BYTES": str(LIMIT),
    }
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    command = [sys.executable, str(MANAGE), "runscheduler", f"--socket={listening.fileno()}"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, env=env, pass_fds=[listening.fileno()], stdout=log, stderr=log, text=True)
    server = WebServer(process.pid, listening.getsockname()[1])
    listening.close()
    try:
        assert until(server.is_up, START_SEC, process), (home / "log").read_text()
        yield server
    finally:
        process.kill()
        process.wait()


def post_head(*lines: str) -> bytes:
    head = ("POST /api/jobs HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines)
    return "\r\n".join((*head, "", "")).encode()


def read_all(connection: socket.socket) -> bytes:
    content = b""
    while part := connection.recv(65536):
        content += part
    return content


@pytest.mark.parametrize("expectation", [[], ["Expect: 100-continue"]], ids=["plain", "expecting 100-continue"])
def test_a_body_announced_as_too_large_is_refused_before_any_of_it_is_sent(
    web: WebServer, expectation: list[str]
) -> None:
    before = web.count_temporary_bytes()
    with closing(web.connect()) as connection:
        connection.sendall(post_head(f"Content-Length: {HUGE}", *expectation))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert web.count_temporary_bytes() == before


def test_a_body_without_a_length_is_refused_at_the_limit(web: WebServer) -> None:
    body = (CHUNK * (LIMIT // len(CHUNK) + 2))[: LIMIT + FRAMING_BYTES]
    with closing(web.connect()) as connection:
        connection.sendall(post_head("Transfer-Encoding: chunked") + body)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 "), answer


def test_a_body_as_large_as_the_limit_reaches_the_api(web: WebServer) -> None:
    with closing(web.connect()) as connection:
        connection.sendall(post_head(f"Content-Length: {LIMIT}", "Connection: close") + b"x" * LIMIT)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 401 "), answer


def test_half_sent_requests_do_not_keep_others_out(web: WebServer) -> None:
    with ExitStack() as stack:
        for _ in range(130):
            stack.enter_context(closing(web.connect())).sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
        answer = web.get_health()
    assert answer.status == 200
    assert answer.getheader("Server") is None
