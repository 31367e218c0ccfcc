"""Carries what handlers say while they run — progress, checkpoints, tokens, log lines — to the database.

Every write carries the lease token: a handler whose lease is lost writes nothing.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.db.models import F

from jobs import db
from jobs.conf import conf
from jobs.engine.connections import Outage, short_timeouts
from jobs.engine.context import Writes
from jobs.engine.leases import Held, Leases
from jobs.models import Job, JobLog

logger = logging.getLogger("jobs.engine.scribe")
CALM_SEC = 0.5  # progress and log lines of this long are written together


class Scribe(threading.Thread):
    def __init__(self, leases: Leases) -> None:
        super().__init__(name="scribe", daemon=True)
        self.leases = leases
        self._dirty = threading.Event()
        self._end = threading.Event()
        self._outage = Outage(logger, "progress and logs")

    def run(self) -> None:
        while not self._end.is_set():
            self._dirty.wait()
            if not any(held.ctx.writes.urgent for held in self.leases):
                self._end.wait(CALM_SEC)
            self._dirty.clear()
            with self._outage.survive():
                short_timeouts(conf.LEASE_SEC * 2 / 3)
                for held in self.leases:
                    write(held)
        db.connection().close()

    def nudge(self) -> None:
        self._dirty.set()

    def end(self) -> None:
        self._end.set()
        self._dirty.set()


def write(held: Held) -> None:
    """Write what is new, if the lease is still ours; else stop the handler."""
    with held.writing:
        if held.lost or not held.ctx.writes:
            return
        writes = held.ctx.take_writes()
        try:
            kept = _store(held, writes)
        except Exception:
            held.ctx.give_back(writes)
            raise
        if not kept:
            held.lose()


def _store(held: Held, writes: Writes) -> bool:
    fields: dict[str, Any] = {}
    if writes.progress is not None:
        fields["progress"], fields["progress_message"] = writes.progress
    if writes.checkpoint is not None:
        fields["checkpoint"] = writes.checkpoint[0]
    if writes.tokens is not None:
        fields["tokens_used"] = writes.tokens
    with db.atomic():
        mine = Job.objects.filter(pk=held.id, lease_token=held.claim.lease_token)
        # Without a field to write, the row is still touched: the lock keeps a successor from claiming meanwhile.
        if not mine.update(**fields or {"tokens_used": F("tokens_used")}):
            return False
        JobLog.objects.bulk_create(
            [JobLog(job_id=held.id, level=level[:16], message=message) for level, message in writes.lines]
        )
    return True
