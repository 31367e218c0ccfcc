"""TLS is checked against the name although an address is connected to; a proxy is asked for the checked address."""

from __future__ import annotations

import base64
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.webhook_receiver import Receiver
from tests.support.webhooks import complete_job, create_endpoint, list_deliveries, send_round
from tests.webhooks.conftest import Settings
from webhooks import http_client

pytestmark = pytest.mark.django_db
Receive = Callable[..., Receiver]
CERTIFICATES = Path(__file__).parent / "certificates"
OURS = CERTIFICATES / "receiver.pem"  # for receiver.test


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the tests' authority were one of the system's."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    http_client._tls_context.cache_clear()
    yield
    http_client._tls_context.cache_clear()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """receiver.test and other.test are on loopback."""
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(".test") else host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def sent_to(url: str) -> Any:
    create_endpoint(url, "job.completed")
    complete_job()
    send_round()
    return list_deliveries()[0]


@pytest.mark.usefixtures("trusting", "names")
def test_the_name_goes_into_sni_and_host_and_is_what_the_certificate_must_say(receive: Receive) -> None:
    there = receive(certificate=OURS)
    assert sent_to(f"https://receiver.test:{there.port}/x").status == "DELIVERED"
    assert there.names == ["receiver.test"]
    assert there.seen[0].headers["Host"] == f"receiver.test:{there.port}"


@pytest.mark.usefixtures("trusting", "names")
@pytest.mark.parametrize("host", ["other.test", "127.0.0.1"])
def test_a_certificate_for_another_name_gets_nothing(host: str, receive: Receive, configure: Settings) -> None:
    configure(WEBHOOK_MAX_RETRIES=0)
    there = receive(certificate=OURS)
    delivery = sent_to(f"https://{host}:{there.port}/")
    assert (delivery.status, there.seen) == ("FAILED", [])
    assert "certificate that does not verify" in delivery.error


@pytest.mark.usefixtures("names")
def test_a_certificate_of_an_unknown_authority_gets_nothing(receive: Receive, configure: Settings) -> None:
    configure(WEBHOOK_MAX_RETRIES=0)
    there = receive(certificate=OURS)
    delivery = sent_to(f"https://receiver.test:{there.port}/")
    assert (delivery.status, there.seen) == ("FAILED", [])
    assert "certificate that does not verify" in delivery.error


@pytest.mark.usefixtures("trusting", "names")
def test_a_handshake_that_hangs_is_cut_off(configure: Settings) -> None:
    configure(WEBHOOK_MAX_RETRIES=0, WEBHOOK_TIMEOUT_SEC=0.5)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        delivery = sent_to(f"https://receiver.test:{deaf.getsockname()[1]}/")
    assert delivery.error == "did not answer in time"


# ---------------------------------------------------------------------- proxies


class Tunnel(socketserver.StreamRequestHandler):
    """A proxy that knows CONNECT and nothing else."""

    def handle(self) -> None:
        lines = []
        while (line := self.rfile.readline().strip()) != b"":
            lines.append(line.decode())
        self.server.asked.append(lines)  # type: ignore[attr-defined]
        host, _, port = lines[0].split()[1].rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port))) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.relay(there)

    def relay(self, there: socket.socket) -> None:
        ends = [self.connection, there]
        while True:
            for ready in select.select(ends, [], [])[0]:
                if not (data := ready.recv(65_536)):
                    return
                (there if ready is self.connection else self.connection).sendall(data)


@contextmanager
def proxy(certificate: Path | None = None) -> Iterator[Any]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        asked: list[list[str]] = []

        def handle_error(self, *_: object) -> None:
            return

    with Server(("127.0.0.1", 0), Tunnel) as server:
        server.asked = []
        if certificate is not None:
            import ssl

            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("trusting", "names")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_is_asked_for_the_checked_address_never_for_a_name(
    scheme: str, receive: Receive, configure: Settings
) -> None:
    there = receive(certificate=OURS if scheme == "https" else None)
    with proxy() as between:
        configure(WEBHOOK_PROXY=f"http://someone:p%40ss@127.0.0.1:{between.server_address[1]}")
        delivery = sent_to(f"{scheme}://receiver.test:{there.port}/")
    assert (delivery.status, delivery.error) == ("DELIVERED", "")
    assert there.seen[0].headers["Host"] == f"receiver.test:{there.port}"
    (asked,) = between.asked
    assert asked[0].startswith(f"CONNECT 127.0.0.1:{there.port} ")
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'someone:p@ss').decode()}" in asked
    assert not any("webhook" in line.lower() or "receiver.test" in line for line in asked)


@pytest.mark.usefixtures("trusting", "names")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_may_be_spoken_to_over_tls(scheme: str, receive: Receive, configure: Settings) -> None:
    there = receive(certificate=OURS if scheme == "https" else None)
    with proxy(OURS) as between:
        configure(WEBHOOK_PROXY=f"https://receiver.test:{between.server_address[1]}/")
        delivery = sent_to(f"{scheme}://receiver.test:{there.port}/")
    assert (delivery.status, delivery.error) == ("DELIVERED", "")
    assert len(between.asked) == 1


def test_a_proxy_that_is_not_there_is_a_failed_try(configure: Settings, receive: Receive) -> None:
    there = receive()
    configure(WEBHOOK_PROXY="http://127.0.0.1:1", WEBHOOK_MAX_RETRIES=0)
    assert sent_to(there.url).error == "refused the connection"
    assert there.connections == 0


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_proxies_of_the_environment_are_not_used(name: str, receive: Receive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    there = receive()
    assert sent_to(there.url).status == "DELIVERED"
