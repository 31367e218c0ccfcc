"""No URL leads to a private network, however it is spelled and whatever its name resolves to."""

from __future__ import annotations

import random
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
    "loopback with a port": "http://127.0.0.1:443/",
    "loopback, three parts": "http://127.0.1/",
    "loopback, short octal": "http://0177.1/",
    "loopback, in brackets": "http://[127.0.0.1]/",
    "loopback, IPv6 without brackets": "http://::1/",
    "loopback, IPv6 cut off": "http://[::1/",
    "loopback by name in capitals": "http://LOCALHOST/",
    "loopback by name and port": "http://localhost:80/",
    "loopback by its long name": "http://localhost.localdomain/",
    "loopback by name with a soft hyphen": "http://loc\u00adalhost/",
    "loopback by name with circled letters": "http://\u24dbocalhost/",
    "loopback after one slash": "http:/127.0.0.1/",
    "loopback after no slash": "http:127.0.0.1",
    "this host, two zeros": "http://00/",
    "this host, IPv6 with a port": "http://[::]:80/",
    "this host, mapped": "http://[::ffff:0:0]/",
    "empty hex": "http://0x/",
    "private, decimal": "http://3232235777/",
    "private, hex": "http://0xc0a80101/",
    "private, octal parts": "http://0300.0250.1.1/",
    "cloud metadata, full-width digits": "http://\uff11\uff16\uff19.254.169.254/",
    "cloud metadata, mapped": "http://[::ffff:169.254.169.254]/",
    "cloud metadata, mapped in hex": "http://[::ffff:a9fe:a9fe]/",
    "cloud metadata, NAT64": "http://[64:ff9b::169.254.169.254]/",
    "cloud metadata, 6to4": "http://[2002:a9fe:a9fe::]/",
    "cloud metadata, IPv6": "http://[fd00:ec2::254]/",
    "cloud metadata, carrier": "http://100.100.100.200/",
    "cloud metadata, protocol assignments": "http://192.0.0.192/",
    "cloud metadata by name": "http://metadata.google.internal/",
    "multicast name": "http://router.local/",
    "home network": "http://printer.home.arpa/",
    "intranet zone in capitals": "http://db.INTERNAL./",
    "6to4 relay": "http://192.88.99.1/",
    "reserved": "http://240.0.0.1/",
    "port of a cache": "http://example.org:6379/",
    "port twice": "http://example.org:80:80/",
    "port with a sign": "http://example.org:+80/",
    "port in full-width digits": "http://example.org:\uff18\uff10/",
    "unix socket": "unix:/var/run/docker.sock",
    "unix socket as a host": "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "dict": "dict://127.0.0.1:11211/",
    "ldap": "ldap://127.0.0.1/",
    "data": "data:text/plain,x",
    "web socket": "ws://example.org/",
    "empty label": "http://example..org/",
    "label that begins with a dash": "http://-example.org/",
    "dots": "http://.../",
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
    "this host": ["0.0.0.0"],
    "this host, IPv6": ["::"],
    "private, 172": ["172.31.255.254"],
    "private, 192": ["192.168.0.1"],
    "protocol assignments": ["192.0.0.192"],
    "benchmarking": ["198.19.0.1"],
    "documentation, IPv6": ["2001:db8::1"],
    "multicast": ["239.0.0.1"],
    "multicast, IPv6": ["ff02::1"],
    "broadcast": ["255.255.255.255"],
    "site local": ["fec0::1"],
    "Teredo": ["2001:0:53aa:64c:0:0:80ff:fffe"],
    "with a zone": ["fe80::1%eth0"],
    "no IP address": ["/var/run/docker.sock"],
    "one before a public one": ["127.0.0.1", PUBLIC],
}
# Tries of the attack by hand that these tests repeat; 160,000 of its 400,000 addresses take 2.5 s.
URLS, NAMES, RANDOM_ADDRESSES = 86, 25, 160_000
# Of the registries of special addresses: first and last, without `ipaddress`, which the checked code uses.
SPECIAL_RANGES = [
    tuple(int.from_bytes(bytes(map(int, address.split("."))), "big") for address in pair.split("-"))
    for pair in (
        *("0.0.0.0-0.255.255.255", "10.0.0.0-10.255.255.255", "100.64.0.0-100.127.255.255"),
        *("127.0.0.0-127.255.255.255", "169.254.0.0-169.254.255.255", "172.16.0.0-172.31.255.255"),
        *("192.0.0.0-192.0.0.255", "192.0.2.0-192.0.2.255", "192.88.99.0-192.88.99.255"),
        *("192.168.0.0-192.168.255.255", "198.18.0.0-198.19.255.255", "198.51.100.0-198.51.100.255"),
        *("203.0.113.0-203.0.113.255", "224.0.0.0-255.255.255.255"),
    )
]
# Forms of IPv6 that contain an IPv4 address: a translator between us and it would lead there.
IPV4_IN_IPV6 = ("::{}", "::ffff:{}", "::ffff:0:{}", "64:ff9b::{}", "64:ff9b:1::{}", "2002:{:x}:{:x}::")


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


def choose_ipv4(chance: random.Random) -> int:
    """Return any address, or one within or right beside a special range."""
    if chance.random() < 0.5:
        return chance.getrandbits(32)
    first, last = chance.choice(SPECIAL_RANGES)
    number = chance.choice((first - 1, first, last, last + 1, chance.randint(first, last)))
    return min(max(number, 0), 2**32 - 1)


def write_ipv4(number: int) -> str:
    return f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def is_special(number: int) -> bool:
    return any(first <= number <= last for first, last in SPECIAL_RANGES)


def is_public_ipv6(number: int) -> bool:
    is_assigned_otherwise = (
        (number >> 105 == 0x20010000 >> 9)  # 2001::/23
        or (number >> 96 == 0x20010DB8)
        or (number >> 112 == 0x2002)
        or (number >> 108 == 0x3FFF0)
    )
    return number >> 125 == 1 and not is_assigned_otherwise


def test_random_addresses_are_judged_as_the_registries_do() -> None:
    chance, tries = random.Random(86), 0
    for _ in range(RANDOM_ADDRESSES // 4):
        number = choose_ipv4(chance)
        text = write_ipv4(number)
        assert url_guard.is_public(text) != is_special(number), text
        form = chance.choice(IPV4_IN_IPV6)
        within = form.format(number >> 16, number & 0xFFFF) if ":x" in form else form.format(text)
        assert not url_guard.is_public(within), within
        for first in (chance.getrandbits(16), chance.choice((0x2000, 0x2001, 0x2002, 0x2600, 0x3FFE, 0x3FFF, 0xFD00))):
            second, rest = chance.choice((0, 1, 0x1FF, 0x200, 0xDB8, chance.getrandbits(16))), chance.getrandbits(16)
            text = f"{first:x}:{second:x}::{rest:x}"
            assert url_guard.is_public(text) == is_public_ipv6(first << 112 | second << 96 | rest), text
        tries += 4
    assert tries >= RANDOM_ADDRESSES


def test_random_addresses_in_urls_are_refused_unless_they_are_public_and_plain(configure: Settings) -> None:
    configure(WEBHOOK_ALLOW_PRIVATE=False)
    chance = random.Random(86)
    for _ in range(2_000):
        number = choose_ipv4(chance)
        parts = list(number.to_bytes(4, "big"))
        unusual = (
            *(f"{number}", f"{number:#x}", f"0{number:o}", ".".join(f"{part:#x}" for part in parts)),
            *(f"0{number >> 24:o}.{number & 0xFFFFFF}", f"0{write_ipv4(number)}", f"[::ffff:{write_ipv4(number)}]"),
        )
        for host in (*unusual, *([write_ipv4(number)] if is_special(number) else [])):
            with pytest.raises(url_guard.RejectedUrl):
                url_guard.parse_destination(f"http://{host}/")
        if not is_special(number):
            assert url_guard.parse_destination(f"http://{write_ipv4(number)}/").host == write_ipv4(number)


def test_there_are_as_many_tries_as_in_the_attack() -> None:
    assert len(UNSAVEABLE) >= URLS
    assert len(UNSENDABLE) >= NAMES


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
