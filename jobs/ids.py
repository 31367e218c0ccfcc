"""Identifiers: time-ordered UUIDv7 for rows, derived UUIDs for lanes, a 63-bit hash for flows."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from functools import lru_cache

_LANES = uuid.UUID("5b1f6a0e-9d4c-5f7e-8a35-6f2f0c7b9a41")
_lock = threading.Lock()
_last_tick = 0


def uuid7() -> uuid.UUID:
    """A UUIDv7 that is strictly larger than every earlier one of this process (RFC 9562, method 3)."""
    return uuid7s(1)[0]


def uuid7s(number: int) -> list[uuid.UUID]:
    """So many of them, in order."""
    global _last_tick
    with _lock:
        now = time.time_ns() * 4096 // 1_000_000  # milliseconds in the high bits, 12 bits of fraction
        first = max(now, _last_tick + 1)
        _last_tick = first + number - 1
    random_bits = memoryview(os.urandom(8 * number)).cast("Q")
    return [_uuid7(tick, bits) for tick, bits in enumerate(random_bits, first)]


def _uuid7(tick: int, bits: int) -> uuid.UUID:
    return uuid.UUID(
        int=(tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | bits & 0x3FFF_FFFF_FFFF_FFFF
    )


@lru_cache(maxsize=65_536)
def lane_id(tenant: str, target: str) -> uuid.UUID:
    """The identity of a lane, known without asking the database. A tenant has no '/', so this is unambiguous."""
    return uuid.uuid5(_LANES, f"{tenant}/{target}")


@lru_cache(maxsize=65_536)
def flow_id(tenant: str, job_type: str, resource: str, addon_id: str) -> int:
    """Jobs of one flow fall under the same limits."""
    digest = hashlib.blake2b("\0".join((tenant, job_type, resource, addon_id)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _forget_tick() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_tick)
