"""Where a webhook may go: which URLs are accepted, and which addresses behind them may be connected to.

What is judged here is what is used: the parts of a URL are taken apart once, and a connection is made to an address
that was judged, never to a name.
"""

from __future__ import annotations

import ipaddress
import queue
import re
import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from django.utils.translation import gettext as _

from jobs.conf import conf

LONGEST_URL = 2000
DEFAULT_PORTS = {"http": 80, "https": 443}
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\xa0\\^`{}|<>\"]")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCAL_NAMES = ("localhost", "local", "localdomain", "internal", "home.arpa")
# `is_global` says yes to some of these, depending on the version of Python.
_NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
)
_UNICAST = ipaddress.ip_network("2000::/3")  # NAT64, mapped, unique local and all the others lie outside

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """Not a place to send to; says why."""


@dataclass(frozen=True)
class Destination:
    """A URL, taken apart. `host` is lower-case ASCII, or an address without brackets."""

    scheme: str
    host: str
    port: int
    target: str  # path and query

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def destination(url: str) -> Destination:
    """Judges what can be judged without asking for an address."""
    if len(url) > LONGEST_URL:
        raise Refused(_("is longer than %d characters") % LONGEST_URL)
    if _FORBIDDEN.search(url):
        raise Refused(_("contains a character that does not belong into a URL"))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Refused(_("is not a URL")) from None
    if parts.scheme not in DEFAULT_PORTS:
        raise Refused(_("must begin with http:// or https://"))
    if "@" in parts.netloc:
        raise Refused(_("must not contain a user name or password"))
    if "#" in url:
        raise Refused(_("must not have a fragment"))
    host = _host(parts.hostname or "")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._[]")
    query = quote(parts.query, safe="/%:@!$&*+,;=~-._?()[]'")
    if port is None:
        port = DEFAULT_PORTS[parts.scheme]
    if not 0 < port < 65_536:
        raise Refused(_("has a port that does not exist"))
    if not conf.WEBHOOK_ALLOW_PRIVATE:
        if port not in conf.WEBHOOK_PORTS:
            allowed = ", ".join(map(str, conf.WEBHOOK_PORTS))
            raise Refused(_("has port %(port)d; allowed are %(allowed)s") % {"port": port, "allowed": allowed})
        if any(host == name or host.endswith(f".{name}") for name in _LOCAL_NAMES):
            raise Refused(_("names a host of a private network"))
        if _address(host) is not None and not is_public(host):
            raise Refused(_("names %s, which is not a public address") % host)
    return Destination(parts.scheme, host, port, f"{path}?{query}" if query else path)


def checked(place: Destination, seconds: float) -> list[str]:
    """The addresses behind a destination, resolved once; refused unless every one of them may be connected to."""
    found = [place.host] if _address(place.host) is not None else resolve(place.host, place.port, seconds)
    if not found:
        raise Refused(_("%s has no address") % place.host)
    if not conf.WEBHOOK_ALLOW_PRIVATE:
        for address in found:
            if not is_public(address):
                where = {"host": place.host, "address": address}
                raise Refused(_("%(host)s is at %(address)s, which is not a public address") % where)
    return found


def is_public(address: str) -> bool:
    found = _address(address)
    if found is None or not found.is_global or found.is_multicast:
        return False
    return (found.version == 4 or found in _UNICAST) and not any(found in network for network in _NEVER)


def resolve(host: str, port: int, seconds: float) -> list[str]:
    """Ask the resolver on a thread of its own: it knows no deadline, and cannot be interrupted."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    try:
        found = answers.get(timeout=max(seconds, 0.01))
    except queue.Empty:
        raise Refused(_("%s could not be resolved in time") % host) from None
    if isinstance(found, Exception):
        raise Refused(_("%(host)s cannot be resolved: %(error)s") % {"host": host, "error": found}) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _host(written: str) -> str:
    """The name as it goes to the resolver and into the certificate check."""
    if "%" in written:
        raise Refused(_("has a host that is not a name or an address"))
    if ":" in written:
        if _address(written) is None:
            raise Refused(_("has a host that is not a name or an address"))
        return str(_address(written))
    try:
        name = written.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        name = ""
    labels = name.split(".")
    if not name or len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Refused(_("has a host that is not a name or an address"))
    if _NUMBER.fullmatch(labels[-1]) and _address(name) is None:
        raise Refused(_("spells its address in an unusual way; write it as four decimal numbers"))
    return name


def _address(written: str) -> Address | None:
    try:
        return ipaddress.ip_address(written)
    except ValueError:
        return None
