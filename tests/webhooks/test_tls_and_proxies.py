"""TLS is verified against the name while the connection is to an address; a proxy gets the checked address."""

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
RECEIVER_CERTIFICATE = CERTIFICATES / "receiver.pem"  # for receiver.test


@pytest.fixture
def trust_test_authority(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trust the certificate authority of the tests."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
    http_client._tls_context.cache_clear()
    yield
    http_client._tls_context.cache_clear()


@pytest.fixture
def resolve_test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve receiver.test and other.test to loopback."""
    real_getaddrinfo = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        return real_getaddrinfo("127.0.0.1" if str(host).endswith(".test") else host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def send_to(url: str) -> Any:
    create_endpoint(url, "job.completed")
    complete_job()
    send_round()
    return list_deliveries()[0]


@pytest.mark.usefixtures("trust_test_authority", "resolve_test_names")
def test_the_name_goes_into_sni_and_host_and_must_be_in_the_certificate(receive: Receive) -> None:
    receiver = receive(certificate=RECEIVER_CERTIFICATE)
    assert send_to(f"https://receiver.test:{receiver.port}/x").status == "DELIVERED"
    assert receiver.names == ["receiver.test"]
    assert receiver.seen[0].headers["Host"] == f"receiver.test:{receiver.port}"


@pytest.mark.usefixtures("trust_test_authority", "resolve_test_names")
@pytest.mark.parametrize("host", ["other.test", "127.0.0.1"])
def test_a_receiver_with_a_certificate_for_another_name_gets_nothing(
    host: str, receive: Receive, configure: Settings
) -> None:
    configure(WEBHOOK_MAX_RETRIES=0)
    receiver = receive(certificate=RECEIVER_CERTIFICATE)
    delivery = send_to(f"https://{host}:{receiver.port}/")
    assert (delivery.status, receiver.seen) == ("FAILED", [])
    assert "certificate that does not verify" in delivery.error


@pytest.mark.usefixtures("resolve_test_names")
def test_a_receiver_with_a_certificate_of_an_unknown_authority_gets_nothing(
    receive: Receive, configure: Settings
) -> None:
    configure(WEBHOOK_MAX_RETRIES=0)
    receiver = receive(certificate=RECEIVER_CERTIFICATE)
    delivery = send_to(f"https://receiver.test:{receiver.port}/")
    assert (delivery.status, receiver.seen) == ("FAILED", [])
    assert "certificate that does not verify" in delivery.error


@pytest.mark.usefixtures("trust_test_authority", "resolve_test_names")
def test_a_handshake_that_hangs_is_cut_off(configure: Settings) -> None:
    configure(WEBHOOK_MAX_RETRIES=0, WEBHOOK_TIMEOUT_SEC=0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        delivery = send_to(f"https://receiver.test:{silent_server.getsockname()[1]}/")
    assert delivery.error == "did not answer in time"


# ---------------------------------------------------------------------- proxies


class Tunnel(socketserver.StreamRequestHandler):
    """Implement CONNECT and no other method of a proxy."""

    def handle(self) -> None:
        lines = []
        while (line := self.rfile.readline().strip()) != b"":
            lines.append(line.decode())
        self.server.requests.append(lines)  # type: ignore[attr-defined]
        host, _, port = lines[0].split()[1].rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port))) as upstream:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.relay(upstream)

    def relay(self, upstream: socket.socket) -> None:
        sockets = [self.connection, upstream]
        while True:
            for readable in select.select(sockets, [], [])[0]:
                if not (data := readable.recv(65_536)):
                    return
                (upstream if readable is self.connection else self.connection).sendall(data)


@contextmanager
def run_proxy(certificate: Path | None = None) -> Iterator[Any]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        requests: list[list[str]] = []

        def handle_error(self, *_: object) -> None:
            return

    with Server(("127.0.0.1", 0), Tunnel) as server:
        server.requests = []
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


@pytest.mark.usefixtures("trust_test_authority", "resolve_test_names")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_is_asked_for_the_checked_address_never_for_a_name(
    scheme: str, receive: Receive, configure: Settings
) -> None:
    receiver = receive(certificate=RECEIVER_CERTIFICATE if scheme == "https" else None)
    with run_proxy() as proxy_server:
        configure(WEBHOOK_PROXY=f"http://someone:p%40ss@127.0.0.1:{proxy_server.server_address[1]}")
        delivery = send_to(f"{scheme}://receiver.test:{receiver.port}/")
    assert (delivery.status, delivery.error) == ("DELIVERED", "")
    assert receiver.seen[0].headers["Host"] == f"receiver.test:{receiver.port}"
    (request,) = proxy_server.requests
    assert request[0].startswith(f"CONNECT 127.0.0.1:{receiver.port} ")
    assert f"Proxy-Authorization: Basic {base64.b64encode(b'someone:p@ss').decode()}" in request
    assert not any("webhook" in line.lower() or "receiver.test" in line for line in request)


@pytest.mark.usefixtures("trust_test_authority", "resolve_test_names")
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_may_be_connected_over_tls(scheme: str, receive: Receive, configure: Settings) -> None:
    receiver = receive(certificate=RECEIVER_CERTIFICATE if scheme == "https" else None)
    with run_proxy(RECEIVER_CERTIFICATE) as proxy_server:
        configure(WEBHOOK_PROXY=f"https://receiver.test:{proxy_server.server_address[1]}/")
        delivery = send_to(f"{scheme}://receiver.test:{receiver.port}/")
    assert (delivery.status, delivery.error) == ("DELIVERED", "")
    assert len(proxy_server.requests) == 1


def test_an_unreachable_proxy_is_a_failed_attempt(configure: Settings, receive: Receive) -> None:
    receiver = receive()
    configure(WEBHOOK_PROXY="http://127.0.0.1:1", WEBHOOK_MAX_RETRIES=0)
    assert send_to(receiver.url).error == "refused the connection"
    assert receiver.connections == 0


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_proxies_of_the_environment_are_not_used(name: str, receive: Receive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    receiver = receive()
    assert send_to(receiver.url).status == "DELIVERED"
