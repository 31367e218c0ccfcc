"""The row of a worker: its name, the figures that the console shows, and the requests that the worker reads."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db.models import F, Q
from django.db.models.functions import Now

from jobs import db
from jobs.errors import Conflict
from jobs.ids import uuid7
from jobs.models import Worker, WorkerState
from jobs.models.worker import IDLE_BEAT_SEC, heartbeat_timeout
from jobs.outages import OutageGuard
from jobs.process_identity import Liveness, ProcessIdentity
from jobs.version import __version__

if TYPE_CHECKING:
    from jobs.engine.worker.worker import WorkerOptions

logger = logging.getLogger("jobs.engine.worker")

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

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.identity = ProcessIdentity.current(options.name)
        self.state: str = WorkerState.RUNNING
        self.request: str = ""
        self._id = uuid7()
        self._row: Worker | None = None
        self._written: tuple[object, ...] = ()
        self._written_at = 0.0
        self._process: Any = None
        self._children: list[Any] = []

    @property
    def is_registered(self) -> bool:
        return self._row is not None

    def register(self) -> None:
        """Insert the row under a name that no live worker has: the given one, or `<host>-<n>` with the lowest n.

        May be repeated when the reply to the first insert was lost. Raise Conflict if a live worker has the given name.
        """
        host, given = self.identity.host, self.options.name
        names_in_use = _release_dead_names(host, given)
        if given is not None and not self._insert(given):
            other = Worker.objects.filter(name=given, stopped_at__isnull=True).first()
            process = "" if other is None else f" (host {other.host}, pid {other.pid})"
            raise Conflict(f"A worker named {given} is already running{process}.")
        number = 1
        while not self.is_registered:
            name = f"{host}-{number}"
            if name not in names_in_use:
                self._insert(name)
            number += 1

    def _insert(self, name: str) -> bool:
        """Insert the row under this name; return False if another worker has the name."""
        serves = self.options.serves
        row = Worker(
            id=self._id,
            name=name,
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
                "excluded_resources": list(serves.excluded_resources),
                "tenant": serves.tenant,
                "executor": self.options.executor,
            },
        )
        Worker.objects.bulk_create([row], ignore_conflicts=True)
        self._row = Worker.objects.filter(pk=self._id).first()
        if self._row is not None:
            self.identity = replace(self.identity, name=self._row.name)
        return self._row is not None

    def write_heartbeat(self, *, busy: int, stuck: int) -> None:
        """Write the row and read requests; unchanged figures are written every IDLE_BEAT_SEC only."""
        assert self._row is not None
        figures = (busy, stuck, self.state)
        if figures == self._written and time.monotonic() - self._written_at < IDLE_BEAT_SEC:
            return
        with db.atomic_on_sqlite() as connection, connection.cursor() as cursor:
            key = Worker._meta.pk.get_db_prep_value(self._row.pk, connection)
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
        if serves.excluded_resources:
            parts.append(f"without resources {', '.join(serves.excluded_resources)}")
        if serves.tenant is not None:
            parts.append(f"tenant {serves.tenant}")
        return ", ".join(parts)


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def register_worker(options: WorkerOptions) -> Registration:
    """Take a name for this process. Raise Conflict if a live worker has the name that the options give."""
    registration = Registration(options)
    outage = OutageGuard(logger, "worker")
    while not registration.is_registered:
        with outage.survive(rejections=False):  # a busy SQLite may keep a new worker waiting
            registration.register()
    return registration


def _release_dead_names(host: str, given: str | None) -> set[str]:
    """Stop the rows of dead workers that have one of the names `<host>-<n>` or the given one. Return the other names.

    Dead is a worker whose process is proven gone, or that has sent no heartbeat for longer than a lease.
    """
    rows = Worker.objects.filter(Q(name__startswith=f"{host}-") | Q(name=given), stopped_at__isnull=True)
    gone = [row.pk for row in rows if row.identity.liveness() == Liveness.GONE]
    dead = rows.filter(Q(pk__in=gone) | Q(heartbeat_at__lte=Now() - heartbeat_timeout()))
    dead.update(state=WorkerState.STOPPED, stopped_at=F("heartbeat_at"), busy=0)
    return set(rows.values_list("name", flat=True))
