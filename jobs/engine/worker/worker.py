"""The worker: its threads, its start, its loop, its shutdown.

One thread claims and records; handlers run in an executor; heartbeat, watchdog, progress writer, listener and
maintenance have threads of their own. A signal only sets a flag, so that no claim and no finish is interrupted.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from django.db import OperationalError

from jobs import actors, db, notifications
from jobs.conf import conf
from jobs.db import prefer_indexes, set_read_committed, set_short_timeouts
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.executors.run import JobLogHandler
from jobs.engine.executors.thread import Executor, OnReturn, ThreadExecutor
from jobs.engine.maintenance import recovery
from jobs.engine.maintenance.runner import MaintenanceThread
from jobs.engine.selection import limits
from jobs.engine.slots import leases
from jobs.engine.worker.claim_schedule import ClaimSchedule
from jobs.engine.worker.heartbeat import STOP_GRACE_SEC, Heartbeat, Watchdog
from jobs.engine.worker.progress_writer import ProgressWriter
from jobs.engine.worker.recorder import LOG_COALESCE_SEC, Recorder
from jobs.engine.worker.recycling import Recycling
from jobs.engine.worker.registration import Registration
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs
from jobs.engine.worker.turn import TurnRunner
from jobs.log_formats import WorkerLog, name_worker
from jobs.models import WorkerState
from jobs.notifications import Listener
from jobs.outages import OutageGuard, is_rolled_back
from jobs.outcomes import Outcome, Stopped

logger = logging.getLogger("jobs.engine.worker")
CAPTURED_LOGGERS = (logging.getLogger(), logging.getLogger("jobs.run"))
BATCH_WINDOW_SEC = 0.002  # how long the first result of a batch waits for others
BACKLOG_SEC = 0.001  # how soon to check again on jobs that wait for a thread
CHANGE_POLL_SEC = 0.05  # how often to ask SQLite whether another connection has committed
REPEAT_SEC = 1.0  # one stop may send several signals: one for each thread of a killed parent, say


class Wakeup(Enum):
    """Why the loop takes a turn, other than for a result."""

    TURN = 0  # for no other reason
    READY = 1  # jobs may be ready
    TARGETS = 2  # targets have changed, too
    CHANGE = 3  # another connection has committed


LoopEvent = tuple[RunningJob, Outcome] | Wakeup


@dataclass(frozen=True)
class WorkerOptions:
    """The options of `manage.py worker`. `burst`: end when no job is left; `max_jobs`, `max_rss_mib`: see Recycling."""

    name: str | None = None
    concurrency: int = 1
    serves: ServedJobs = field(default_factory=lambda: ServedJobs(()))
    executor: str = "thread"
    burst: bool = False
    maintenance: bool = True
    max_jobs: int | None = None
    max_rss_mib: int | None = None
    log: WorkerLog | None = None  # None: the logging of the site


class WorkerLoop:
    """One worker, whose name is registered: create it, then `run` it in the main thread."""

    def __init__(self, registration: Registration) -> None:
        options = registration.options
        self.options = options
        self.registration = registration
        self.identity = registration.identity
        self.running = RunningJobs(options.concurrency)
        self.progress_writer = ProgressWriter(self.running)
        self.heartbeat = Heartbeat(self.running, on_beat=self._on_beat)
        self.watchdog = Watchdog(self.running, on_timeout=self._on_timeout, on_unresponsive=self._request_turn)
        self.listener = Listener(on_ready=self.wake, on_stop=self.heartbeat.wake)
        self.maintenance = MaintenanceThread()
        self.executor: Executor = make_executor(options, self.identity.name, self._on_return)
        self.schedule = ClaimSchedule(checks_unserved=not options.serves.skip_unserved)
        has_limits = options.max_jobs is not None or options.max_rss_mib is not None
        self.recycling = Recycling(options.max_jobs, options.max_rss_mib) if has_limits else None
        actor = actors.make_worker_actor(self.identity.name)
        self.recorder = Recorder(
            self.running, worker=self.identity.name, actor=actor, on_release=self.schedule.record_free_slot
        )
        self.turn_runner = TurnRunner(
            Claimer(self.identity.name, options.serves, self.identity.process_key),
            self.schedule,
            self.running,
            self.recorder,
            self.recycling,
            actor=actor,
            start=self.executor.start,
            on_write=self.progress_writer.wake,
            is_notified=lambda: self.listener.is_listening,
        )
        self._capture = JobLogHandler()
        self._events: queue.SimpleQueue[LoopEvent] = queue.SimpleQueue()
        self._data_version: object = object()  # differs from any version: the start counts as a change
        self._end = threading.Event()
        self._outage = OutageGuard(logger, "worker", self._end)
        self._stop_requested_at: float | None = None  # when the first stop signal came
        self._must_exit_now = False
        self._stopping_since: float | None = None
        self._recycling_since: float | None = None
        self._last_turn_failed = False
        self._has_backlog = False  # jobs wait for a thread
        self._configured_connection: Any = None

    def run(self) -> int:
        """Work until a stop is requested (or, in burst mode, until no job is left). Return the exit code."""
        self._start()
        try:
            while not self._should_exit():
                self._drain_events()
                self._try_turn()
                self._enforce_deadlines()
                if self.recorder.lost_jobs:
                    self.recorder.log_lost_jobs(now=time.monotonic())
            return 0
        finally:
            self.recorder.log_lost_jobs()
            self._shut_down()

    def wake(self, targets_changed: bool = True) -> None:
        """Take a turn soon, because jobs may have become ready. Called from any thread."""
        self._events.put(Wakeup.TARGETS if targets_changed else Wakeup.READY)

    def stop(self, *_: Any) -> None:
        """Request an orderly shutdown; another request, REPEAT_SEC later, ends at once. Usable as a signal handler."""
        now = time.monotonic()
        if self._stop_requested_at is None:
            self._stop_requested_at = now
        elif now - self._stop_requested_at > REPEAT_SEC:
            self._must_exit_now = True
        self._request_turn()

    def install_signal_handlers(self) -> None:
        """Stop on SIGTERM and SIGINT."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def _start(self) -> None:
        name_worker(self.identity.name)
        while self._stop_requested_at is None:
            with self._outage.survive(rejections=False):  # a busy SQLite may keep a new worker waiting
                self._detect_pooler()
                limits.sync_limits()
                limits.warn_of_idle_slots(self.options.concurrency, self.options.serves)
                if self.options.executor == "thread" and conf.CANCEL_TIMEOUT_SEC is not None:
                    logger.warning("CANCEL_TIMEOUT_SEC has no effect on handlers in threads; use --executor process")
                recovered = recovery.recover_dead_processes(self.identity)
                if recovered:
                    logger.warning("worker %s recovered %d jobs of dead processes", self.identity.name, recovered)
                leases.end_dead_leases()
                self._start_threads()
                return

    def _detect_pooler(self) -> None:
        """Poll, and prepare no statements, if a notification to this process does not arrive."""
        if Listener.can_listen() and not notifications.check_delivery():
            db.assume_transaction_pooler()
            logger.warning(
                "worker %s: a notification that it sent to itself did not arrive: it seems to be connected through a "
                "transaction pooler. It looks for jobs every %g s, and prepares no statements. "
                "Set DISABLE_SERVER_SIDE_CURSORS to True for this database, or connect workers to PostgreSQL directly",
                *(self.identity.name, conf.POLL_SEC),
            )

    def _start_threads(self) -> None:
        self._capture.install(*CAPTURED_LOGGERS)
        self.heartbeat.start()
        self.watchdog.start()
        self.progress_writer.start()
        if Listener.can_listen():
            self.listener.start()
        if self.options.maintenance:
            self.maintenance.start()
        logger.info("worker %s started: %s", self.identity.name, self.registration.describe())

    def _shut_down(self) -> None:
        for thread in (self.maintenance, self.listener, self.progress_writer, self.heartbeat, self.watchdog):
            thread.end()
        self.executor.end()
        for captured_logger in CAPTURED_LOGGERS:
            captured_logger.removeHandler(self._capture)
        for thread in (self.maintenance, self.progress_writer, self.heartbeat):
            if thread.is_alive():
                thread.join(2.0)
        with self._outage.survive():
            self.registration.deregister()
        logger.info("worker %s: shutdown finished, %d jobs left running", self.identity.name, len(self.running))
        name_worker("")

    def _should_exit(self) -> bool:
        """Return whether the loop ends: after a stop request and its grace, after a burst, or to be recycled."""
        if self._must_exit_now:
            return True
        is_busy = bool(len(self.running) or self.recorder.returned)
        if self._stop_requested_at is not None or self.registration.request == WorkerState.STOPPING:
            if self._stopping_since is None:
                self._stopping_since = time.monotonic()
                logger.info("worker %s: shutdown begun, %d jobs running", self.identity.name, len(self.running))
                self.registration.begin_stopping()
            return not is_busy or self._has_grace_ended(self._stopping_since)
        if self.recycling is not None and self.recycling.check_limits():
            if self._recycling_since is None:
                self._recycling_since = time.monotonic()
                self.registration.begin_stopping()
                logger.info(
                    "worker %s: recycling, %s; %d jobs running",
                    *(self.identity.name, self.recycling.reason, len(self.running)),
                )
            return not is_busy
        if self.options.burst and not is_busy and not self.schedule.may_have_more:
            with self._outage.survive():
                return self.turn_runner.is_exhausted()
        return False

    # ------------------------------------------------------------------ the loop

    def _drain_events(self) -> None:
        """Wait for an event, then handle all that have come; after a result, wait a moment for more of a batch."""
        seconds = self._next_wait()
        can_claim = self._may_claim() and self.running.free_slots > 0
        should_watch = self._data_version is not None and seconds > 0 and can_claim
        event = self._watch_commits(seconds) if should_watch else get_event(self._events, seconds)
        if event is not None and self._handle_event(event):
            until = time.monotonic() + BATCH_WINDOW_SEC
            while len(self.recorder.returned) < len(self.running) and (left := until - time.monotonic()) > 0:
                if (event := get_event(self._events, left)) is not None:
                    self._handle_event(event)
        while not self._events.empty():
            self._handle_event(self._events.get())

    def _watch_commits(self, seconds: float) -> LoopEvent | None:
        """Wait for an event; a commit of another connection is one, because SQLite does not notify.

        The version is read before the change is looked at, so that the next change is not missed.
        """
        until = time.monotonic() + seconds
        with db.watch_commits() as data_version:
            while (left := until - time.monotonic()) > 0:
                if (event := get_event(self._events, min(left, CHANGE_POLL_SEC))) is not None:
                    return event
                before, self._data_version = self._data_version, data_version()
                if self._data_version is None:  # the database notifies: no need to read versions
                    return get_event(self._events, max(until - time.monotonic(), 0.0))
                if self._data_version != before:
                    return Wakeup.CHANGE
        return None

    def _handle_event(self, event: LoopEvent) -> bool:
        """Record an event; return whether it was the result of a job."""
        if isinstance(event, tuple):
            job, outcome = event
            self.recorder.returned[job] = outcome
            return True
        if event == Wakeup.CHANGE:
            self.schedule.record_change()
        elif event in (Wakeup.READY, Wakeup.TARGETS):
            self.schedule.wake(targets_changed=event == Wakeup.TARGETS)
        return False

    def _next_wait(self) -> float:
        """Return how many seconds to wait for an event before the next turn."""
        if self._has_backlog:
            return BACKLOG_SEC
        if self._outage.failures or self.recorder.returned:
            return 0.0
        if self._stopping_since is not None:
            seconds = 0.1
        elif not self._may_claim() or not self.running.free_slots:
            seconds = 0.5
        else:
            seconds = self.turn_runner.limit_wait(self.schedule.wait_sec(time.monotonic()))
        return min(seconds, LOG_COALESCE_SEC) if self.recorder.lost_jobs else seconds

    def _may_claim(self) -> bool:
        is_stopping = self._stopping_since is not None or self._stop_requested_at is not None
        return not is_stopping and self._recycling_since is None and self.registration.request == ""

    def _try_turn(self) -> None:
        """Take one turn; after a failed one, recover its claims and record results one by one first."""
        with self._outage.survive():
            if self._configured_connection is None or db.connection().connection is not self._configured_connection:
                self._configure_connection()
            if self._outage.failures or self._last_turn_failed:
                self.turn_runner.recover_claims()
                if not self._outage.failures:
                    self.recorder.record_individually()
            self._last_turn_failed = True
            try:
                self.turn_runner.run(may_claim=self._may_claim())
            except OperationalError as error:
                if not is_rolled_back(error):
                    raise
                reason = str(error).strip().splitlines()[0]
                logger.warning("worker %s: a turn was rolled back (%s); repeating it", self.identity.name, reason)
                self.turn_runner.recover_claims()  # an earlier transaction of the turn may have claimed
            self._last_turn_failed = False

    def _configure_connection(self) -> None:
        """Set timeouts and planner options on a new connection."""
        set_short_timeouts(conf.LEASE_SEC * 2 / 3)
        prefer_indexes()
        set_read_committed()
        self._configured_connection = db.connection().connection

    # ------------------------------------------------------------------ handlers that must stop

    def _enforce_deadlines(self) -> None:
        """Add threads for waiting jobs, and deal with handlers that should have stopped and have not."""
        self._has_backlog = self.executor.add_threads_if_stalled()
        now = time.monotonic()
        for job in self.running:
            if job.timed_out and job.is_unresponsive(now, STOP_GRACE_SEC):
                with self._outage.survive():
                    self.recorder.abandon_job(job)
        if self._stopping_since is not None and now - self._stopping_since > conf.SHUTDOWN_GRACE_SEC:
            for job in self.running:
                if job.stop_requested_at is None:
                    job.request_stop(None)
                if job.cancel_start():  # its process may still be starting
                    self._on_return(job, Stopped())

    def _has_grace_ended(self, stopping_since: float) -> bool:
        """Return whether handlers had their time to stop. Kill those that can be killed; they get as long again."""
        waited = time.monotonic() - stopping_since
        if waited <= conf.SHUTDOWN_GRACE_SEC + STOP_GRACE_SEC:
            return False
        kills = [job.kill for job in self.running if job.kill is not None]
        for kill in kills:
            kill()
        return not kills or waited > conf.SHUTDOWN_GRACE_SEC + 2 * STOP_GRACE_SEC

    def _on_return(self, job: RunningJob, outcome: Outcome) -> None:
        job.returned = True
        self._events.put((job, outcome))

    def _on_timeout(self, job: RunningJob) -> None:
        seconds = job.claim.max_runtime_sec
        logger.warning("job %s ran longer than %s s; stopping it", job.name, seconds, extra=job.log_fields)
        job.request_stop(None)
        if job.kill is not None:
            job.kill()

    def _on_beat(self) -> None:
        before = self.registration.request
        self.registration.write_heartbeat(busy=len(self.running), stuck=self.running.stuck_slots)
        request = self.registration.request
        if request != before:
            logger.info("worker %s: requested state is %s", self.identity.name, request or WorkerState.RUNNING)
            self.wake()

    def _request_turn(self) -> None:
        self._events.put(Wakeup.TURN)


def get_event(events: queue.SimpleQueue[LoopEvent], seconds: float) -> LoopEvent | None:
    """Return the next event, or None when the time is up."""
    try:
        return events.get(timeout=seconds)
    except queue.Empty:
        return None


def make_executor(options: WorkerOptions, worker: str, on_return: OnReturn) -> Executor:
    if options.executor == "process":
        from jobs.engine.executors.process import ProcessExecutor

        return ProcessExecutor(on_return, worker, options.log)
    return ThreadExecutor(on_return)
