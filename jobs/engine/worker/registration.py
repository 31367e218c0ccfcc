"""The row of a worker: the figures that the console shows, and the requests that the worker reads."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.ids import uuid7
from jobs.models import Worker, WorkerState
from jobs.process_identity import Liveness, ProcessIdentity
from jobs.version import __version__

if TYPE_CHECKING:
    from jobs.engine.worker.worker import WorkerOptions

IDLE_BEAT_SEC = 5.0  # how often an idle worker writes its row

_UPDATE_ROW = """
    UPDATE jobscheduler_worker
    SET heartbeat_at = CURRENT_TIMESTAMP, busy = %s, stuck = %s, state = %s, rss_bytes = %s, cpu_percent = %s
    WHERE id = %s RETURNING request
"""


def _import_psutil() -> Any:
    import psutil

    return psutil


def _measure(process: Any) -> tuple[int, float]:
    """Return memory in bytes and CPU use in percent; zeros for a process that has just ended."""
    try:
        return process.memory_info().rss, process.cpu_percent()
    except _import_psutil().Error:
        return 0, 0.0


class Registration:
    """Inserts and updates the row of one worker process."""

    def __init__(self, identity: ProcessIdentity, options: WorkerOptions) -> None:
        self.identity = identity
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
            name=self.identity.name,
            host=self.identity.host,
            pid=self.identity.pid,
            boot_id=self.identity.boot_id,
            pid_namespace=self.identity.namespace,
            pid_started=self.identity.started,
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

    def write_heartbeat(self, *, busy: int, stuck: int) -> None:
        """Write the row and read requests; unchanged figures are written every IDLE_BEAT_SEC only."""
        assert self._row is not None
        figures = (busy, stuck, self.state)
        if figures == self._written and time.monotonic() - self._written_at < IDLE_BEAT_SEC:
            return
        with db.connection().cursor() as cursor:
            key = Worker._meta.pk.get_db_prep_value(self._row.pk, db.connection())
            cursor.execute(_UPDATE_ROW, [busy, stuck, self.state, *self._measure_usage(), key])
            self.request = next((request for (request,) in cursor.fetchall()), "")
        if self.state in (WorkerState.RUNNING, WorkerState.QUIET):
            self.state = WorkerState.QUIET if self.request == WorkerState.QUIET else WorkerState.RUNNING
        self._written, self._written_at = figures, time.monotonic()

    def _measure_usage(self) -> tuple[int | None, float | None]:
        """Return memory in bytes and percent of a core since the last heartbeat, handler processes included."""
        try:
            self._process = self._process or _import_psutil().Process()
            if self.options.executor == "process":
                known = {child.pid: child for child in self._children}
                children = self._process.children(recursive=True)
                self._children = [known.get(child.pid, child) for child in children]
            usage = [_measure(process) for process in (self._process, *self._children)]
        except Exception:  # noqa: BLE001 — for display only: it must not keep leases from being renewed
            return None, None
        return sum(memory for memory, _ in usage), sum(percent for _, percent in usage)

    def begin_stopping(self) -> None:
        """Report STOPPING with the next heartbeat."""
        self.state = WorkerState.STOPPING

    def deregister(self) -> None:
        """Mark the row as stopped."""
        if self._row is not None:
            rows = Worker.objects.filter(pk=self._row.pk)
            rows.update(state=WorkerState.STOPPED, stopped_at=Now(), busy=0)

    def describe(self) -> str:
        """Return slots, executor and served jobs in one line."""
        serves = self.options.serves
        parts = [
            _format_count(self.options.concurrency, "slot"),
            f"{self.options.executor} executor",
            _format_count(len(serves.types), "job type"),
        ]
        if serves.resources is not None:
            parts.append(f"resources {', '.join(serves.resources)}")
        if serves.tenant is not None:
            parts.append(f"tenant {serves.tenant}")
        return ", ".join(parts)


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def find_running_duplicate(identity: ProcessIdentity) -> ProcessIdentity | None:
    """Return a live worker of the same name: on this host its process runs, elsewhere its heartbeat is recent."""
    recently = Now() - timedelta(seconds=max(conf.LEASE_SEC, 3 * IDLE_BEAT_SEC))
    rows = Worker.objects.filter(name=identity.name, heartbeat_at__gt=recently)
    for row in rows.exclude(state=WorkerState.STOPPED):
        other = ProcessIdentity(row.name, row.host, row.boot_id, row.pid_namespace, row.pid, row.pid_started)
        if other != identity and other.liveness() != Liveness.GONE:
            return other
    return None
