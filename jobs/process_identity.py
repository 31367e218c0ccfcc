"""Which process a lease belongs to, and whether that process is provably gone.

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
    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"  # another host, another namespace, or /proc cannot be read: wait for the lease


@dataclass(frozen=True)
class ProcessIdentity:
    name: str
    host: str
    boot_id: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def current(cls, name: str | None = None) -> ProcessIdentity:
        pid = os.getpid()
        host = socket.gethostname()[:60]
        started = _read_start_time(pid) or ""
        return cls(name or f"{host}-{pid}", host, read_boot_id(), _read_pid_namespace(), pid, started)

    @classmethod
    def parse_owner(cls, owner: str) -> ProcessIdentity | None:
        """The worker that a lease owner names, or None if it is not one of ours."""
        found = None if is_remote(owner) else _OWNER.fullmatch(owner)
        if found is None:
            return None
        name, host, boot, namespace, pid, started = found.groups()
        return cls(name, host, boot, namespace, int(pid), started)

    @property
    def process_key(self) -> str:
        return f"{self.name}@{self.host}:{self.boot_id}:{self.namespace}:{self.pid}:{self.started}"

    def slot_owner(self, number: int) -> str:
        return f"{self.process_key}#{number}"

    def liveness(self) -> Liveness:
        if not self.boot_id or not self.namespace or not self.started:
            return Liveness.UNKNOWN
        if self.boot_id != read_boot_id():
            # The same host has booted again: nothing of its former life is left. Other hosts cannot be judged.
            return Liveness.GONE if self.host == socket.gethostname()[:60] and read_boot_id() else Liveness.UNKNOWN
        if self.namespace != _read_pid_namespace():
            return Liveness.UNKNOWN
        now = _read_start_time(self.pid)
        if now is not None:
            return Liveness.ALIVE if now == self.started else Liveness.GONE
        return Liveness.GONE if _read_start_time(os.getpid()) is not None else Liveness.UNKNOWN


def is_remote(owner: str) -> bool:
    """Whether a remote worker has the lease. It says what it likes of itself, so nothing is read out of that."""
    return _REMOTE_OWNER.match(owner) is not None


_REMOTE_OWNER = re.compile(r"r:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:")
_OWNER = re.compile(r"(.+)@([^@:]*):([^@:]*):([^@:]*):(\d+):([^@:#]*)#\d+")


def read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def read_beat_clock() -> str:
    """This host's steady clock, in a form that tells which boot it counts from."""
    return f"{read_boot_id()}/{time.clock_gettime(time.CLOCK_MONOTONIC):.3f}"


def beat_fields() -> dict[str, str]:
    """Return what a heartbeat writes besides its time, where that time may jump."""
    return {"beat_clock": read_beat_clock()} if db.clock_may_jump() else {}


def seconds_since_beat(clock: str | None) -> float | None:
    """How long ago `beat_clock` said this, if it was this host in this boot."""
    boot, _, then = (clock or "").partition("/")
    if not boot or boot != read_boot_id():
        return None
    return time.clock_gettime(time.CLOCK_MONOTONIC) - float(then)


def _read_pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").removeprefix("pid:[").removesuffix("]")
    except OSError:
        return ""


def _read_start_time(pid: int) -> str | None:
    """The start time of a process in clock ticks since boot; None if there is no such process (or it is a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
