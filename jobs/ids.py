"""Identifiers: time-ordered UUIDv7 for rows, derived UUIDs for lanes (targets), a 63-bit hash for flows."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from datetime import datetime, timedelta
from functools import lru_cache

CLOCK_SLACK = timedelta(hours=1)  # the inserting host sets the time of an id, the database all other times of its row
_LANE_NAMESPACE = uuid.UUID("5b1f6a0e-9d4c-5f7e-8a35-6f2f0c7b9a41")
_lock = threading.Lock()
_last_tick = 0


def uuid7() -> uuid.UUID:
    """Return a UUIDv7 that is larger than all earlier ones of this process (RFC 9562, method 3)."""
    return uuid7s(1)[0]


def uuid7s(number: int) -> list[uuid.UUID]:
    """Return `number` UUIDv7 in ascending order."""
    global _last_tick
    with _lock:
        now = time.time_ns() * 4096 // 1_000_000  # milliseconds in the high bits, 12 bits of fraction
        first = max(now, _last_tick + 1)
        _last_tick = first + number - 1
    random_bits = memoryview(os.urandom(8 * number)).cast("Q")
    return [
        uuid.UUID(int=(tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | bits & 0x3FFF_FFFF_FFFF_FFFF)
        for tick, bits in enumerate(random_bits, first)
    ]


def min_id_at(moment: datetime) -> uuid.UUID:
    """Return the smallest id of a row that is inserted at this time: the primary key is an index by age."""
    return uuid.UUID(int=max(int(moment.timestamp() * 1000), 0) << 80)


@lru_cache(maxsize=65_536)
def derive_lane_id(tenant: str, target: str) -> uuid.UUID:
    """Return the id of a target's row without a query. A tenant contains no '/', so the id is unambiguous."""
    return uuid.uuid5(_LANE_NAMESPACE, f"{tenant}/{target}")


@lru_cache(maxsize=65_536)
def derive_flow_id(tenant: str, job_type: str, resource: str, addon_id: str) -> int:
    """Return the hash of the fields that limits apply to; jobs with the same hash share the same limits."""
    digest = hashlib.blake2b("\0".join((tenant, job_type, resource, addon_id)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _reset_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)
