"""No URL leads to a private network, however it is spelled and whatever its name resolves to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from jobs.errors import InvalidInput
from tests.support.webhooks import complete_job, create_endpoint, list_deliveries, send_round
from tests.webhooks.conftest import Settings
from webhooks import services, url_guard
from webhooks.models import WebhookEndpoint

pytestmark = [pytest.mark.django_db, pytest.mark.once]

PUBLIC = "93.184.216.34"
# URLs that cannot be saved. Each is also written to the database directly, and must be refused when it is sent to.
UNSAVEABLE = {
    "loopback": "http://127.0.0.1/",
    "loopback, another": "http://127.8.9.10/",
    "loopback, short": "http://127.1/",
    "loopback, decimal": "http://2130706433/",
    "loopback, hex": "http://0x7f000001/",
    "loopback, hex parts": "http://0x7f.0x0.0x0.0x1/",
    "loopback, octal": "http://0177.0.0.1/",
    "loopback, long octal": "http://017700000001/",
    "loopback, zero-padded": "http://127.000.000.001/",
    "loopback, mixed": "http://0x7f.1/",
    "loopback, full-width digits": "http://１２７.０.０.１/",
    "loopback, circled digits": "http://①②⑦.⓪.⓪.①/",
    "loopback, other dots": "http://127。0。0。1/",
    "loopback, percent-encoded": "http://%31%32%37.0.0.1/",
    "loopback, trailing dot": "http://127.0.0.1./",
    "loopback, IPv6": "http://[::1]/",
    "loopback, IPv6 spelled out": "http://[0:0:0:0:0:0:0:1]/",
    "loopback by name": "http://localhost/",
    "loopback by name and dot": "http://localhost./",
    "loopback by subdomain": "http://a.localhost/",
    "this host": "http://0.0.0.0/",
    "this host, short": "http://0/",
    "this host, IPv6": "http://[::]/",
    "private, 10": "http://10.0.0.1/",
    "private, 172": "http://172.16.0.1/",
    "private, 192": "https://192.168.1.1/",
    "unique local": "http://[fd00::1]/",
    "site local": "http://[fec0::1]/",
    "link-local, cloud metadata": "http://169.254.169.254/latest/meta-data/",
    "link-local, decimal": "http://2852039166/",
    "link-local, IPv6": "http://[fe80::1]/",
    "link-local with a zone": "http://[fe80::1%25eth0]/",
    "shared by carriers": "http://100.64.0.1/",
    "benchmarking": "http://198.18.0.1/",
    "documentation": "http://203.0.113.1/",
    "multicast": "http://224.0.0.1/",
    "multicast, IPv6": "http://[ff02::1]/",
    "broadcast": "http://255.255.255.255/",
    "mapped": "http://[::ffff:127.0.0.1]/",
    "mapped, hex": "http://[::ffff:7f00:1]/",
    "compatible": "http://[::127.0.0.1]/",
    "translated": "http://[::ffff:0:127.0.0.1]/",
    "NAT64": "http://[64:ff9b::7f00:1]/",
    "NAT64, local use": "http://[64:ff9b:1::7f00:1]/",
    "6to4": "http://[2002:7f00:1::]/",
    "Teredo": "http://[2001:0:53aa:64c:0:0:80ff:fffe]/",
    "user name": "http://user@example.org/",
    "user name and password": "http://user:pass@example.org/",
    "user name that looks like a host": "http://example.org@127.0.0.1/",
    "backslash": "http://example.org\\@127.0.0.1/",
    "port of a database": "http://example.org:5432/",
    "port of mail": "http://example.org:25/",
    "port 0": "http://example.org:0/",
    "port too large": "http://example.org:65536/",
    "file": "file:///etc/passwd",
    "ftp": "ftp://example.org/",
    "gopher": "gopher://example.org/",
    "no scheme": "//example.org/",
    "no host": "http:///hook",
    "javascript": "javascript:alert(1)",
    "line break": "http://example.org/\r\nX-Injected: 1",
    "space": "http://example.org/ HTTP/1.1",
    "tab in the host": "http://127.0\t.0.1/",
    "NUL": "http://example.org/\0",
    "fragment": "http://example.org/#@127.0.0.1/",
    "wildcard host": "http://*.example.org/",
    "ends in a number": "http://example.org.127/",
    "intranet zone": "http://db.internal/",
}
# Addresses that a harmless name can resolve to.
UNSENDABLE = {
    "loopback": ["127.0.0.1"],
    "loopback, IPv6": ["::1"],
    "private": ["10.1.2.3"],
    "link-local": ["169.254.169.254"],
    "carrier": ["100.100.100.200"],
    "unique local": ["fd12::1"],
    "mapped": ["::ffff:10.0.0.1"],
    "NAT64": ["64:ff9b::a00:1"],
    "6to4": ["2002:a00:1::"],
    "one of many": [PUBLIC, "10.1.2.3"],
    "one of many, IPv6": [PUBLIC, "fe80::1"],
    "no address": [],
}


@pytest.fixture
def connection_attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Refuse every IP connection; return the addresses that were tried."""
    addresses: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        addresses.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket.socket, "connect", connect)
    return addresses


def patch_resolver(monkeypatch: pytest.MonkeyPatch, *address_lists: list[str]) -> list[str]:
    """Resolve names to these addresses, one list per lookup, then the last one; return the names looked up."""
    names: list[str] = []
    remaining = list(address_lists)

    def getaddrinfo(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        names.append(str(host))
        addresses = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return names


def create_unchecked_endpoint(url: str) -> None:
    endpoint = create_endpoint("https://example.org/", "job.completed")
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(url=url)


@pytest.mark.parametrize("name", UNSAVEABLE)
def test_a_hostile_url_is_refused_when_it_is_saved_with_a_reason(name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        services.create(UNSAVEABLE[name], ["*"])
    (error,) = refused.value.errors
    assert error["loc"] == ["url"]
    assert len(str(error["msg"])) > 10
    assert not WebhookEndpoint.objects.exists()


@pytest.mark.parametrize("name", [name for name, url in UNSAVEABLE.items() if "\0" not in url])
def test_a_hostile_url_that_is_in_the_database_is_not_contacted(
    name: str, connection_attempts: list[Any], configure: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(WEBHOOK_ALLOW_PRIVATE=False, WEBHOOK_MAX_RETRIES=0)
    patch_resolver(monkeypatch, [PUBLIC])
    create_unchecked_endpoint(UNSAVEABLE[name])
    complete_job()
    send_round()
    (delivery,) = list_deliveries()
    assert connection_attempts == []
    assert delivery.status == "FAILED"
    assert len(delivery.error) > 10


@pytest.mark.parametrize("name", UNSENDABLE)
def test_a_name_is_not_contacted_unless_all_its_addresses_are_public(
    name: str, connection_attempts: list[Any], configure: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(WEBHOOK_ALLOW_PRIVATE=False, WEBHOOK_MAX_RETRIES=0)
    looked_up = patch_resolver(monkeypatch, UNSENDABLE[name])
    create_endpoint("https://rebind.example.org/", "job.completed")
    complete_job()
    send_round()
    (delivery,) = list_deliveries()
    assert (connection_attempts, looked_up) == ([], ["rebind.example.org"])
    assert "rebind.example.org" in delivery.error


def test_a_name_that_changes_its_addresses_is_resolved_once_and_the_checked_address_is_connected(
    connection_attempts: list[Any], configure: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(WEBHOOK_ALLOW_PRIVATE=False, WEBHOOK_MAX_RETRIES=0)
    looked_up = patch_resolver(monkeypatch, [PUBLIC], ["127.0.0.1"])
    create_endpoint("https://rebind.example.org/", "job.completed")
    complete_job()
    send_round()
    assert looked_up == ["rebind.example.org"]
    assert connection_attempts == [(PUBLIC, 443)]


def test_a_later_attempt_resolves_and_checks_the_name_again(
    connection_attempts: list[Any], configure: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(WEBHOOK_ALLOW_PRIVATE=False, WEBHOOK_MAX_RETRIES=3)
    patch_resolver(monkeypatch, [PUBLIC], ["127.0.0.1"], [PUBLIC], ["10.0.0.1"])
    create_endpoint("https://rebind.example.org/", "job.completed")
    complete_job()
    send_round()
    assert connection_attempts == [(PUBLIC, 443), (PUBLIC, 443)]


def test_without_the_check_the_private_address_would_be_contacted(
    connection_attempts: list[Any], configure: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(WEBHOOK_ALLOW_PRIVATE=False, WEBHOOK_MAX_RETRIES=0)
    monkeypatch.setattr(url_guard, "is_public", lambda address: True)
    patch_resolver(monkeypatch, ["10.1.2.3"])
    create_endpoint("https://rebind.example.org/", "job.completed")
    complete_job()
    send_round()
    assert connection_attempts == [("10.1.2.3", 443)]


def test_a_resolver_that_does_not_answer_is_not_waited_for(
    configure: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    stop = threading.Event()
    configure(WEBHOOK_ALLOW_PRIVATE=False, WEBHOOK_MAX_RETRIES=0, WEBHOOK_TIMEOUT_SEC=0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: stop.wait(60) and [])
    create_endpoint("https://slow.example.org/", "job.completed")
    complete_job()
    send_round()
    stop.set()
    assert "could not be resolved in time" in list_deliveries()[0].error


SAVEABLE = {
    "https://example.org": ("https", "example.org", 443, "/"),
    "http://example.org:443/": ("http", "example.org", 443, "/"),
    "https://EXAMPLE.org:/a?b=c": ("https", "example.org", 443, "/a?b=c"),
    "https://example.org./": ("https", "example.org", 443, "/"),
    "https://bücher.example/größe?q=ä": ("https", "xn--bcher-kva.example", 443, "/gr%C3%B6%C3%9Fe?q=%C3%A4"),
    f"https://{PUBLIC}/": ("https", PUBLIC, 443, "/"),
    "https://[2606:2800:220:1:248:1893:25c8:1946]/x": ("https", "2606:2800:220:1:248:1893:25c8:1946", 443, "/x"),
    "https://a_b.example.org/": ("https", "a_b.example.org", 443, "/"),
}


@pytest.mark.parametrize("url", SAVEABLE)
def test_an_ordinary_url_is_parsed_into_its_destination(url: str) -> None:
    destination = url_guard.parse_destination(url)
    assert (destination.scheme, destination.host, destination.port, destination.target) == SAVEABLE[url]


def test_ports_are_a_setting_and_private_networks_must_be_allowed(configure: Settings) -> None:
    configure(WEBHOOK_ALLOW_PRIVATE=False, WEBHOOK_PORTS=(8443,))
    assert url_guard.parse_destination("https://example.org:8443/").port == 8443
    with pytest.raises(url_guard.RejectedUrl, match="port 443 is not allowed"):
        url_guard.parse_destination("https://example.org/")
    configure(WEBHOOK_ALLOW_PRIVATE=True, WEBHOOK_PORTS=(8443,))
    for url in ("http://127.0.0.1:9/", "http://10.0.0.1/", "http://localhost:8000/", "http://[::1]:81/"):
        assert url_guard.parse_destination(url).port
    with pytest.raises(url_guard.RejectedUrl):
        url_guard.parse_destination("http://2130706433/")
