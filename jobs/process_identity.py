"""Identify the process that owns a lease, and tell whether it is provably gone.

A name can be used again, and so can a pid; name, host, boot, pid namespace, pid and start time together cannot.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jobs import db


class Liveness(StrEnum):
    """Whether a process exists, as far as this process can know."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"  # another host, another namespace, or /proc cannot be read: wait for the lease


@dataclass(frozen=True)
class ProcessIdentity:
    """One process of a worker. `started` is its start time in clock ticks since boot."""

    name: str
    host: str
    boot_id: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def current(cls, name: str | None = None) -> ProcessIdentity:
        """Return the identity of this process, by default named by host and pid."""
        pid = os.getpid()
        host = socket.gethostname()[:60]
        started = _read_start_time(pid) or ""
        return cls(name or f"{host}-{pid}", host, read_boot_id(), _read_pid_namespace(), pid, started)

    @classmethod
    def parse_owner(cls, owner: str) -> ProcessIdentity | None:
        """Parse the owner of a lease; return None if it is not a local worker."""
        match = None if is_remote(owner) else _OWNER.fullmatch(owner)
        if match is None:
            return None
        name, host, boot, namespace, pid, started = match.groups()
        return cls(name, host, boot, namespace, int(pid), started)

    @property
    def process_key(self) -> str:
        """Return the text that is unique to this process; the owner of its leases begins with it."""
        return f"{self.name}@{self.host}:{self.boot_id}:{self.namespace}:{self.pid}:{self.started}"

    def slot_owner(self, number: int) -> str:
        """Return the lease owner of one slot."""
        return f"{self.process_key}#{number}"

    def liveness(self) -> Liveness:
        """Return whether the process exists, as far as this host can tell."""
        if not self.boot_id or not self.namespace or not self.started:
            return Liveness.UNKNOWN
        if self.boot_id != read_boot_id():
            # The same host has booted again, so no earlier process is left. The processes of another host are unknown.
            return Liveness.GONE if self.host == socket.gethostname()[:60] and read_boot_id() else Liveness.UNKNOWN
        if self.namespace != _read_pid_namespace():
            return Liveness.UNKNOWN
        started = _read_start_time(self.pid)
        if started is not None:
            return Liveness.ALIVE if started == self.started else Liveness.GONE
        return Liveness.UNKNOWN if _has_process(self.pid) else Liveness.GONE


def is_remote(owner: str) -> bool:
    """Return whether a remote worker has the lease. It chooses its own name, so nothing is parsed from that."""
    return _REMOTE_OWNER.match(owner) is not None


_REMOTE_OWNER = re.compile(r"r:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:")
_OWNER = re.compile(r"(.+)@([^@:]*):([^@:]*):([^@:]*):(\d+):([^@:#]*)#\d+")


def read_boot_id() -> str:
    """Return the id of the host's current boot, or "" if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def read_beat_clock() -> str:
    """Return this host's monotonic clock with the boot that it counts from, as the column `beat_clock` stores it."""
    return f"{read_boot_id()}/{time.clock_gettime(time.CLOCK_MONOTONIC):.3f}"


def beat_fields() -> dict[str, str]:
    """Return the columns that a heartbeat writes besides its time, on a database whose clock may jump."""
    return {"beat_clock": read_beat_clock()} if db.clock_may_jump() else {}


def seconds_since_beat(clock: str | None) -> float | None:
    """Return the seconds since this `beat_clock` was read, or None if another host or boot read it."""
    boot, _, beat_sec = (clock or "").partition("/")
    if not boot or boot != read_boot_id():
        return None
    return time.clock_gettime(time.CLOCK_MONOTONIC) - float(beat_sec)


def _read_pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        return ""


def _read_start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot; "" of a zombie; None if it cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _has_process(pid: int) -> bool:
    """Return whether a process has this pid. /proc may hide those of other users (`hidepid`, `ProtectProc`)."""
    try:
        os.kill(pid, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
