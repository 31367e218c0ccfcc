"""Find the job that has a unique key. The conditions repeat those of the partial indexes.

SQLite has no row locks, and one writer: the insert that failed before has the lock.
"""

from __future__ import annotations

from typing import NamedTuple

_LIVE = "('DISPATCHING', 'PAUSED', 'PENDING', 'QUEUED', 'RUNNING')"
_WAITING_START = f"""
    SELECT id FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'start' AND dispatched_at IS NULL AND status IN {_LIVE}
"""
_WAITING_END = f"""
    SELECT id FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'end' AND dispatched_at IS NULL AND status IN {_LIVE}
"""
_LIVE_END = f"""
    SELECT id FROM jobscheduler_job
    WHERE tenant = %s AND unique_key = %s AND unique_until = 'end' AND status IN {_LIVE}
"""


class VendorStatement(NamedTuple):
    postgresql: str
    sqlite: str


SHARE_START = VendorStatement(f"{_WAITING_START} FOR SHARE", _WAITING_START)
SHARE_END = VendorStatement(f"{_WAITING_END} FOR SHARE", _WAITING_END)
LOCK_START = VendorStatement(f"{_WAITING_START} FOR NO KEY UPDATE", _WAITING_START)
LOCK_END = VendorStatement(f"{_WAITING_END} FOR NO KEY UPDATE", _WAITING_END)
FIND_END = VendorStatement(_LIVE_END, _LIVE_END)
