"""Reject URLs and addresses that webhooks must not be sent to (SSRF).

The values that are checked are the values that are used: a URL is parsed once, and connections are made to a checked
address, never to a name.
"""

from __future__ import annotations

import ipaddress
import logging
import queue
import re
import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from django.utils.translation import gettext as _

from jobs.conf import conf

logger = logging.getLogger("webhooks.url_guard")
MAX_URL_LENGTH = 2000
DEFAULT_PORTS = {"http": 80, "https": 443}
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f-\xa0\\^`{}|<>\"]")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCAL_NAMES = ("localhost", "local", "localdomain", "internal", "home.arpa")
# `is_global` is true for some of these, depending on the version of Python.
_BLOCKED_NETWORKS = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
)
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")  # without NAT64, mapped, unique local and other special ranges


class RejectedUrl(Exception):
    """Raised for a URL that must not be sent to, with the reason."""


@dataclass(frozen=True)
class Destination:
    """A parsed URL. `host` is a name in lower-case ASCII, or an address without brackets."""

    scheme: str
    host: str
    port: int
    target: str  # path and query

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_destination(url: str) -> Destination:
    """Parse a URL; raise RejectedUrl for all that can be rejected without resolving its name."""
    if len(url) > MAX_URL_LENGTH:
        raise RejectedUrl(_("is longer than %d characters") % MAX_URL_LENGTH)
    if _FORBIDDEN_CHARACTERS.search(url):
        raise RejectedUrl(_("contains a character that is not allowed in a URL"))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RejectedUrl(_("is not a URL")) from None
    if parts.scheme not in DEFAULT_PORTS:
        raise RejectedUrl(_("must begin with http:// or https://"))
    if "@" in parts.netloc:
        raise RejectedUrl(_("must not contain a user name or password"))
    if "#" in url:
        raise RejectedUrl(_("must not have a fragment"))
    host = _normalize_host(parts.hostname or "")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._[]")
    query = quote(parts.query, safe="/%:@!$&*+,;=~-._?()[]'")
    if port is None:
        port = DEFAULT_PORTS[parts.scheme]
    if not 0 < port < 65_536:
        raise RejectedUrl(_("has an invalid port"))
    if not conf.WEBHOOK_ALLOW_PRIVATE:
        if port not in conf.WEBHOOK_PORTS:
            ports = {"port": port, "allowed": ", ".join(map(str, conf.WEBHOOK_PORTS))}
            raise RejectedUrl(_("port %(port)d is not allowed (allowed: %(allowed)s)") % ports)
        if any(host == name or host.endswith(f".{name}") for name in _LOCAL_NAMES):
            raise RejectedUrl(_("names a host of a private network"))
        if _parse_address(host) is not None and not is_public(host):
            raise RejectedUrl(_("names %s, which is not a public address") % host)
    return Destination(parts.scheme, host, port, f"{path}?{query}" if query else path)


def resolve_allowed(destination: Destination, seconds: float) -> list[str]:
    """Resolve a destination once; raise RejectedUrl unless all its addresses may be connected to."""
    host = destination.host
    addresses = [host] if _parse_address(host) is not None else resolve(host, destination.port, seconds)
    if not addresses:
        raise RejectedUrl(_("%s has no address") % host)
    if not conf.WEBHOOK_ALLOW_PRIVATE:
        for address in addresses:
            if not is_public(address):
                # The address is for operators. In the log of a job it would tell tenants about the inner network.
                not_for_jobs = {"captured": True}
                logger.warning("%s is at %s, which is not a public address", host, address, extra=not_for_jobs)
                raise RejectedUrl(_("the address of %s is not a public address") % host)
    return addresses


def is_public(address: str) -> bool:
    parsed = _parse_address(address)
    if parsed is None or not parsed.is_global or parsed.is_multicast:
        return False
    is_unicast = parsed.version == 4 or parsed in _GLOBAL_UNICAST
    return is_unicast and not any(parsed in network for network in _BLOCKED_NETWORKS)


def resolve(host: str, port: int, seconds: float) -> list[str]:
    """Return the addresses of a name. The resolver takes no timeout, so it runs on a thread that may be abandoned."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            results.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            results.put(error)

    threading.Thread(target=look_up, name=f"resolve {host}", daemon=True).start()
    try:
        result = results.get(timeout=max(seconds, 0.01))
    except queue.Empty:
        raise RejectedUrl(_("%s could not be resolved in time") % host) from None
    if isinstance(result, Exception):
        raise RejectedUrl(_("%(host)s cannot be resolved: %(error)s") % {"host": host, "error": result}) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in result))


def _normalize_host(host: str) -> str:
    """Return the host as the resolver and the certificate check get it."""
    if "%" in host or (":" in host and _parse_address(host) is None):
        raise RejectedUrl(_("has a host that is not a name or an address"))
    if ":" in host:
        return str(_parse_address(host))
    try:
        name = host.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        name = ""
    labels = name.split(".")
    if not name or len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise RejectedUrl(_("has a host that is not a name or an address"))
    if _NUMBER.fullmatch(labels[-1]) and _parse_address(name) is None:
        raise RejectedUrl(_("has an IPv4 address in an unusual form; write it as four decimal numbers"))
    return name


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
