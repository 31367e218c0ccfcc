"""The address of the client of a request, for log lines and limits."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

from django.http import HttpRequest

from jobs.conf import conf

IPV6_PREFIX = 64  # the smallest network that a provider assigns: one client has all of its addresses


def get_peer_address(request: HttpRequest) -> str:
    """Return the address of the connection, or the one that the outermost of NUM_PROXIES proxies has appended."""
    address: str = request.META.get("REMOTE_ADDR") or "-"
    if conf.NUM_PROXIES:
        forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
        try:
            return str(ip_address(forwarded[-conf.NUM_PROXIES :][0].strip()))
        except ValueError:
            return address
    return address


def get_peer_network(request: HttpRequest) -> str:
    """Return the source that failures are counted for: the address, or its network in IPv6."""
    address = get_peer_address(request)
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(ip_network((int(parsed), IPV6_PREFIX), strict=False))
    return address
