"""Check a port to listen on, and propose a free one. Run as a script, it needs nothing but Python."""

from __future__ import annotations

import os
import sys
from errno import EADDRINUSE
from socket import AF_INET, AF_INET6, create_server, socket

PORTS_TRIED, MAX_PORT = 100, 65_535


def listen(host: str, port: int) -> socket:
    family = AF_INET6 if ":" in host else AF_INET
    return create_server((host, port), family=family, backlog=1024)


def find_free_port(host: str, port: int) -> int | None:
    """Return the first free port after this one; None if the next PORTS_TRIED are taken."""
    for candidate in range(port + 1, min(port + PORTS_TRIED, MAX_PORT) + 1):
        try:
            listen(host, candidate).close()
        except OSError:
            continue
        return candidate
    return None


def describe_problem(host: str, port: int, error: OSError, usage: str) -> str:
    """Return why the port cannot be used; if it is taken, with a free one, which `usage` names as `{port}`."""
    free_port = find_free_port(host, port) if error.errno == EADDRINUSE else None
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    hint = "" if free_port is None else f" Port {free_port} is free: {usage.format(port=free_port)}"
    return f"Cannot listen on {host}:{port}: {reason}.{hint}"


def main(host: str, port_text: str) -> str | None:
    """Return why the port cannot be used, and what to do; None if it can."""
    if not port_text.isdecimal() or int(port_text) > MAX_PORT:
        return f"PORT={port_text} is not a number from 0 to {MAX_PORT}."
    port = int(port_text)
    try:
        listen(host, port).close()
    except OSError as error:
        return describe_problem(host, port, error, "PORT={port} make run")
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
