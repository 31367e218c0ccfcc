"""The worker: its threads, its start, its loop, its shutdown.

One thread claims and records; handlers run in an executor; heartbeat, watchdog, progress writer, listener and
housekeeping have threads of their own. A signal only sets a flag, so that no claim and no finish is cut in two.
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

from jobs import actors, db
from jobs.conf import conf
from jobs.engine import recovery
from jobs.engine.claim import Claimer, Serves
from jobs.engine.connections import Outage, is_rolled_back, prefer_indexes, read_committed, short_timeouts
from jobs.engine.execution import CaptureLogs
from jobs.engine.executors import Executor, ThreadExecutor
from jobs.engine.housekeeping import Housekeeper
from jobs.engine.identity import Identity
from jobs.engine.selection import limits
from jobs.engine.wakeup import Listener
from jobs.engine.worker.claim_schedule import ClaimSchedule
from jobs.engine.worker.heartbeat import STOP_GRACE_SEC, Heartbeat, Watchdog
from jobs.engine.worker.progress_writer import ProgressWriter
from jobs.engine.worker.recorder import LOG_COALESCE_SEC, Recorder
from jobs.engine.worker.registration import Registration
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs
from jobs.engine.worker.turn import Turns
from jobs.models import WorkerState
from jobs.outcomes import Outcome, Stopped

logger = logging.getLogger("jobs.engine.worker")
CAPTURED = (logging.getLogger(), logging.getLogger("jobs.run"))
BATCH_WINDOW_SEC = 0.002  # how long the first result of a batch waits for others
BACKLOG_SEC = 0.001  # how soon jobs that wait for a thread are looked after
CHANGE_POLL_SEC = 0.03  # how often to ask SQLite whether another connection has committed


class Wakeup(Enum):
    """Why the loop shall turn, other than for a result."""

    TURN = 0  # no more than that
    READY = 1  # something may be ready
    TARGETS = 2  # targets have changed, too
    CHANGE = 3  # another connection has committed something


Event = tuple[RunningJob, Outcome] | Wakeup


@dataclass(frozen=True)
class Options:
    name: str | None = None
    concurrency: int = 1
    serves: Serves = field(default_factory=lambda: Serves(()))
    executor: str = "thread"
    burst: bool = False
    housekeeping: bool = True


class Worker:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.me = Identity.mine(options.name)
        self.running = RunningJobs(options.concurrency)
        self.progress_writer = ProgressWriter(self.running)
        self.registration = Registration(self.me, options)
        self.heartbeat = Heartbeat(self.running, on_beat=self._on_beat)
        self.watchdog = Watchdog(self.running, on_timeout=self._on_timeout, on_unresponsive=self._turn_now)
        self.listener = Listener(on_ready=self.wake, on_stop=self.heartbeat.wake)
        self.housekeeper = Housekeeper()
        self.executor: Executor = make_executor(options.executor, self._on_return)
        self.schedule = ClaimSchedule(checks_unserved=not options.serves.choosy)
        actor = actors.worker(self.me.name)
        self.recorder = Recorder(self.running, worker=self.me.name, actor=actor, on_release=self.schedule.free_slot)
        self.turns = Turns(
            Claimer(self.me.name, options.serves, self.me.incarnation),
            self.schedule,
            self.running,
            self.recorder,
            actor=actor,
            start=self.executor.start,
            on_write=self.progress_writer.wake,
            is_notified=lambda: self.listener.listening,
        )
        self._capture = CaptureLogs()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._data_version: object = object()  # what the database holds at the start counts as a change
        self._end = threading.Event()
        self._outage = Outage(logger, "worker", self._end)
        self._signals = 0
        self._stopping_since: float | None = None
        self._last_turn_failed = False
        self._has_backlog = False  # jobs wait for a thread
        self._configured_connection: Any = None

    def run(self) -> int:
        """Work until told to stop (or, in burst mode, until nothing is left). Returns the exit code."""
        self._start()
        try:
            while not self._is_over():
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
        """Note, from any thread, that something may have become ready."""
        self._events.put(Wakeup.TARGETS if targets_changed else Wakeup.READY)

    def stop(self, *_: Any) -> None:
        """Ask for an orderly shutdown; asked twice, end at once. Fit to be a signal handler."""
        self._signals += 1
        self._turn_now()

    def listen_to_signals(self) -> None:
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def _start(self) -> None:
        while not self._signals:
            with self._outage.survive(refusals=False):  # a busy SQLite may keep a newcomer waiting
                limits.sync()
                limits.warn_of_idle_slots(self.options.concurrency, self.options.serves)
                recovered = recovery.recover_former_life(self.me)
                if recovered:
                    logger.warning("recovered %d jobs of a former life of worker %s", recovered, self.me.name)
                self.registration.register()
                self._start_threads()
                return

    def _start_threads(self) -> None:
        for captured in CAPTURED:
            captured.addHandler(self._capture)
        self.heartbeat.start()
        self.watchdog.start()
        self.progress_writer.start()
        if Listener.is_possible():
            self.listener.start()
        if self.options.housekeeping:
            self.housekeeper.start()
        logger.info("worker %s started: %s", self.me.name, self.registration.summary())

    def _shut_down(self) -> None:
        for thread in (self.housekeeper, self.listener, self.progress_writer, self.heartbeat, self.watchdog):
            thread.end()
        self.executor.end()
        for captured in CAPTURED:
            captured.removeHandler(self._capture)
        for thread in (self.housekeeper, self.progress_writer, self.heartbeat):
            if thread.is_alive():
                thread.join(2.0)
        with self._outage.survive():
            self.registration.deregister()
        logger.info("worker %s: shutdown ended, %d jobs left behind", self.me.name, len(self.running))

    def _is_over(self) -> bool:
        if self._signals > 1:
            return True
        is_busy = bool(len(self.running) or self.recorder.returned)
        if self._signals or self.registration.request == WorkerState.STOPPING:
            if self._stopping_since is None:
                self._stopping_since = time.monotonic()
                logger.info("worker %s: shutdown begun, %d jobs running", self.me.name, len(self.running))
                self.registration.begin_stopping()
            return not is_busy or self._has_waited_enough(self._stopping_since)
        if self.options.burst and not is_busy and not self.schedule.may_have_more:
            with self._outage.survive():
                return self.turns.is_exhausted()
        return False

    # ------------------------------------------------------------------ the loop

    def _drain_events(self) -> None:
        """Wait for something to happen; take all results that have come, with a moment's patience for a batch."""
        seconds = self._next_wait()
        watch = self._data_version is not None and seconds > 0 and self._may_claim() and self.running.free > 0
        event = self._watch_commits(seconds) if watch else get_event(self._events, seconds)
        if event is not None and self._handle_event(event):
            patience = time.monotonic() + BATCH_WINDOW_SEC
            while len(self.recorder.returned) < len(self.running) and (left := patience - time.monotonic()) > 0:
                if (event := get_event(self._events, left)) is not None:
                    self._handle_event(event)
        while not self._events.empty():
            self._handle_event(self._events.get())

    def _watch_commits(self, seconds: float) -> Event | None:
        """Wait for an event, where a commit of another connection is one: SQLite does not notify.

        The version is asked for before the change is looked at, so that the next one is not missed.
        """
        until = time.monotonic() + seconds
        with db.watch_commits() as data_version:
            while (left := until - time.monotonic()) > 0:
                if (event := get_event(self._events, min(left, CHANGE_POLL_SEC))) is not None:
                    return event
                before, self._data_version = self._data_version, data_version()
                if self._data_version is None:  # the database notifies: no need to ask it again
                    return get_event(self._events, max(until - time.monotonic(), 0.0))
                if self._data_version != before:
                    return Wakeup.CHANGE
        return None

    def _handle_event(self, event: Event) -> bool:
        """Note what happened; return whether it was the result of a job."""
        if isinstance(event, tuple):
            job, outcome = event
            self.recorder.returned[job] = outcome
            return True
        if event == Wakeup.CHANGE:
            self.schedule.note_change()
        elif event in (Wakeup.READY, Wakeup.TARGETS):
            self.schedule.wake(targets_changed=event == Wakeup.TARGETS)
        return False

    def _next_wait(self) -> float:
        """How long to wait for an event before the next turn."""
        if self._has_backlog:
            return BACKLOG_SEC
        if self._outage.failures or self.recorder.returned:
            return 0.0
        if self._stopping_since is not None:
            seconds = 0.1
        elif not self._may_claim() or not self.running.free:
            seconds = 0.5
        else:
            seconds = self.turns.limit_wait(self.schedule.wait_sec(time.monotonic()))
        return min(seconds, LOG_COALESCE_SEC) if self.recorder.lost_jobs else seconds

    def _may_claim(self) -> bool:
        return self._stopping_since is None and not self._signals and self.registration.request == ""

    def _try_turn(self) -> None:
        with self._outage.survive():
            if self._configured_connection is None or db.connection().connection is not self._configured_connection:
                self._configure_connection()
            if self._outage.failures or self._last_turn_failed:
                self.turns.recover()
                if not self._outage.failures:
                    self.recorder.record_individually()
            self._last_turn_failed = True
            try:
                self.turns.run(may_claim=self._may_claim())
            except OperationalError as error:
                if not is_rolled_back(error):
                    raise
                logger.warning("a turn was rolled back (%s); repeating it", str(error).strip().splitlines()[0])
                self.schedule.fail_turn()
            self._last_turn_failed = False

    def _configure_connection(self) -> None:
        """Set timeouts and planner options on a new connection."""
        short_timeouts(conf.LEASE_SEC * 2 / 3)
        prefer_indexes()
        read_committed()
        self._configured_connection = db.connection().connection

    # ------------------------------------------------------------------ handlers that must stop

    def _enforce_deadlines(self) -> None:
        """Deal with jobs that wait for a thread, and with handlers that should have stopped and have not."""
        self._has_backlog = self.executor.add_threads_if_stalled()
        now = time.monotonic()
        for job in self.running:
            if job.timed_out and job.is_unresponsive(now, STOP_GRACE_SEC):
                with self._outage.survive():
                    self.recorder.abandon(job)
        if self._stopping_since is not None and now - self._stopping_since > conf.SHUTDOWN_GRACE_SEC:
            for job in self.running:
                if job.stop_requested_at is None:
                    job.request_stop(None)
                if job.cancel_start():  # its process may be slow to start
                    self._on_return(job, Stopped())

    def _has_waited_enough(self, stopping_since: float) -> bool:
        """Whether handlers had their time to stop. Those that can be killed are, and get as long again to end."""
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
        logger.warning("job %s ran longer than %s s; stopping it", job.id, job.claim.max_runtime_sec)
        job.request_stop(None)
        if job.kill is not None:
            job.kill()

    def _on_beat(self) -> None:
        before = self.registration.request
        self.registration.beat(busy=len(self.running), stuck=self.running.stuck)
        request = self.registration.request
        if request != before:
            logger.info("worker %s was asked to become %s", self.me.name, request or WorkerState.RUNNING)
            self.wake()

    def _turn_now(self) -> None:
        self._events.put(Wakeup.TURN)


def get_event(events: queue.SimpleQueue[Event], seconds: float) -> Event | None:
    """Return the next event, or None when the time is up."""
    try:
        return events.get(timeout=seconds)
    except queue.Empty:
        return None


def make_executor(kind: str, done: Any) -> Executor:
    if kind == "process":
        from jobs.engine.processes import ProcessExecutor

        return ProcessExecutor(done)
    return ThreadExecutor(done)
