"""A worker's row: what the console shows of it, and the requests that it reads there."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.engine.process_identity import Identity, Life
from jobs.ids import uuid7
from jobs.models import Worker, WorkerState
from jobs.version import __version__

if TYPE_CHECKING:
    from jobs.engine.worker.worker import Options

QUIET_BEAT_SEC = 5.0  # how often an idle worker writes its row

_BEAT = """
    UPDATE jobscheduler_worker
    SET heartbeat_at = CURRENT_TIMESTAMP, busy = %s, stuck = %s, state = %s, rss_bytes = %s, cpu_percent = %s
    WHERE id = %s RETURNING request
"""


def _psutil() -> Any:
    import psutil

    return psutil


def _measure(process: Any) -> tuple[int, float]:
    """Return memory and CPU share; zeros for a process that has just ended."""
    try:
        return process.memory_info().rss, process.cpu_percent()
    except _psutil().Error:
        return 0, 0.0


class Registration:
    def __init__(self, me: Identity, options: Options) -> None:
        self.me = me
        self.options = options
        self.state: str = WorkerState.RUNNING
        self.request: str = ""
        self._id = uuid7()
        self._row: Worker | None = None
        self._written: tuple[object, ...] = ()
        self._written_at = 0.0
        self._process: Any = None
        self._children: list[Any] = []

    def register(self) -> None:
        """Insert the row. May be repeated when the reply to the first insert was lost."""
        serves = self.options.serves
        row = Worker(
            id=self._id,
            name=self.me.name,
            host=self.me.host,
            pid=self.me.pid,
            boot_id=self.me.boot_id,
            pid_namespace=self.me.namespace,
            pid_started=self.me.started,
            version=__version__,
            slots=self.options.concurrency,
            serves={
                "types": list(serves.types),
                "resources": list(serves.resources) if serves.resources is not None else None,
                "tenant": serves.tenant,
                "executor": self.options.executor,
            },
        )
        Worker.objects.bulk_create([row], ignore_conflicts=True)
        self._row = row

    def beat(self, *, busy: int, stuck: int) -> None:
        """Write the row and read requests; unchanged figures are written every QUIET_BEAT_SEC only."""
        assert self._row is not None
        figures = (busy, stuck, self.state)
        if figures == self._written and time.monotonic() - self._written_at < QUIET_BEAT_SEC:
            return
        with db.connection().cursor() as cursor:
            key = Worker._meta.pk.get_db_prep_value(self._row.pk, db.connection())
            cursor.execute(_BEAT, [busy, stuck, self.state, *self._usage(), key])
            self.request = next((request for (request,) in cursor.fetchall()), "")
        if self.state in (WorkerState.RUNNING, WorkerState.QUIET):
            self.state = WorkerState.QUIET if self.request == WorkerState.QUIET else WorkerState.RUNNING
        self._written, self._written_at = figures, time.monotonic()

    def _usage(self) -> tuple[int | None, float | None]:
        """Return memory and the share of a core since the last beat, with those of handler processes."""
        try:
            self._process = self._process or _psutil().Process()
            if self.options.executor == "process":
                known = {each.pid: each for each in self._children}
                self._children = [known.get(each.pid, each) for each in self._process.children(recursive=True)]
            used = [_measure(each) for each in (self._process, *self._children)]
        except Exception:  # noqa: BLE001 — for display only: it must not keep leases from being renewed
            return None, None
        return sum(memory for memory, _ in used), sum(share for _, share in used)

    def begin_stopping(self) -> None:
        self.state = WorkerState.STOPPING

    def deregister(self) -> None:
        if self._row is not None:
            rows = Worker.objects.filter(pk=self._row.pk)
            rows.update(state=WorkerState.STOPPED, stopped_at=Now(), busy=0)

    def summary(self) -> str:
        serves = self.options.serves
        parts = [
            _counted(self.options.concurrency, "slot"),
            f"{self.options.executor} executor",
            _counted(len(serves.types), "job type"),
        ]
        if serves.resources is not None:
            parts.append(f"resources {', '.join(serves.resources)}")
        if serves.tenant is not None:
            parts.append(f"tenant {serves.tenant}")
        return ", ".join(parts)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def find_running_duplicate(me: Identity) -> Identity | None:
    """Return a live worker of the same name: proven on this host, by its recent heartbeat elsewhere."""
    fresh = Now() - timedelta(seconds=max(conf.LEASE_SEC, 3 * QUIET_BEAT_SEC))
    rows = Worker.objects.filter(name=me.name, heartbeat_at__gt=fresh)
    for row in rows.exclude(state=WorkerState.STOPPED):
        other = Identity(row.name, row.host, row.boot_id, row.pid_namespace, row.pid, row.pid_started)
        if other != me and other.life() != Life.GONE:
            return other
    return None
