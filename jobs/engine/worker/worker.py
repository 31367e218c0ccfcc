"""The worker: its threads, its start, its loop, its shutdown.

One thread claims and records; handlers run in an executor; heartbeat, watchdog, progress writer, listener and
housekeeping have threads of their own. A signal only sets a flag, so that no claim and no finish is cut in two.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from django.db import OperationalError

from jobs import actors, db
from jobs.conf import conf
from jobs.engine import recovery
from jobs.engine.claim import Claimer, Serves
from jobs.engine.connections import Outage, is_rolled_back, prefer_indexes, read_committed, short_timeouts
from jobs.engine.context import CaptureLogs
from jobs.engine.executors import Executor, ThreadExecutor
from jobs.engine.housekeeping import Housekeeper
from jobs.engine.identity import Identity
from jobs.engine.listener import Listener
from jobs.engine.selection import limits
from jobs.engine.worker.claim_schedule import ClaimSchedule
from jobs.engine.worker.event_queue import EventQueue, Wakeup
from jobs.engine.worker.heartbeat import STOP_GRACE_SEC, Heartbeat, Watchdog
from jobs.engine.worker.progress_writer import ProgressWriter
from jobs.engine.worker.recorder import LOG_COALESCE_SEC, Recorder
from jobs.engine.worker.registration import Registration
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs
from jobs.engine.worker.turns import Turns
from jobs.models import WorkerState
from jobs.outcomes import Outcome, Stopped

logger = logging.getLogger("jobs.engine.worker")
CAPTURED = (logging.getLogger(), logging.getLogger("jobs.run"))
BATCH_WINDOW_SEC = 0.002  # how long the first result of a batch waits for others
BACKLOG_SEC = 0.001  # how soon jobs that wait for a thread are looked after


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
        self.recorder = Recorder(
            self.running, worker=self.me.name, actor=actor, on_release=lambda job: self.schedule.free_slot()
        )
        self.turns = Turns(
            Claimer(self.me.name, options.serves, self.me.incarnation),
            self.schedule,
            self.running,
            self.recorder,
            actor=actor,
            start=lambda job: self.executor.start(job),
            on_write=self.progress_writer.wake,
            is_notified=lambda: self.listener.listening,
        )
        self._capture = CaptureLogs()
        self._events = EventQueue()
        self._end = threading.Event()
        self._outage = Outage(logger, "worker", self._end)
        self._signals = 0
        self._stopping_since: float | None = None
        self._last_turn_failed = False
        self._configured_connection: Any = None

    # ------------------------------------------------------------------ start and end

    def run(self) -> int:
        """Work until told to stop (or, in burst mode, until nothing is left). Returns the exit code."""
        self._start()
        try:
            while not self._is_over():
                self._drain_events()
                self._try_turn()
                self._enforce_deadlines()
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
        is_busy = bool(len(self.running) or len(self.recorder))
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
        if self._handle_event(self._next_wait()):
            patience = time.monotonic() + BATCH_WINDOW_SEC
            while len(self.recorder) < len(self.running) and (left := patience - time.monotonic()) > 0:
                self._handle_event(left)
        while not self._events.is_empty():
            self._handle_event(0.0)

    def _handle_event(self, seconds: float) -> bool:
        """Wait for one event; returns whether it was the result of a job."""
        event = self._events.wait(seconds, watch=self._may_claim() and self.running.free > 0)
        if isinstance(event, tuple):
            self.recorder.add(*event)
            return True
        if event == Wakeup.CHANGE:
            self.schedule.note_change()
        elif event in (Wakeup.READY, Wakeup.TARGETS):
            self.schedule.wake(targets_changed=event == Wakeup.TARGETS)
        return False

    def _next_wait(self) -> float:
        """How long to wait for an event before the next turn."""
        if self.executor.has_backlog():
            return BACKLOG_SEC
        if self._outage.is_on or len(self.recorder):
            return 0.0
        if self._stopping_since is not None:
            seconds = 0.1
        elif not self._may_claim() or not self.running.free:
            seconds = 0.5
        else:
            seconds = self.turns.limit_wait(self.schedule.wait_sec(time.monotonic()))
        return min(seconds, LOG_COALESCE_SEC) if self.recorder.has_lost_jobs else seconds

    def _may_claim(self) -> bool:
        return self._stopping_since is None and not self._signals and self.registration.request == ""

    def _try_turn(self) -> None:
        with self._outage.survive():
            self._configure_connection()
            if self._outage.is_on or self._last_turn_failed:
                self.turns.recover()
                if not self._outage.is_on:
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
        if self._configured_connection is None or db.connection().connection is not self._configured_connection:
            short_timeouts(conf.LEASE_SEC * 2 / 3)
            prefer_indexes()
            read_committed()
            self._configured_connection = db.connection().connection

    # ------------------------------------------------------------------ handlers that must stop

    def _enforce_deadlines(self) -> None:
        """Deal with jobs that wait for a thread, and with handlers that should have stopped and have not."""
        if self.executor.has_backlog():
            self.executor.add_threads_if_stalled()
        now = time.monotonic()
        for job in self.running:
            if job.is_unresponsive(now, STOP_GRACE_SEC):
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

    # ------------------------------------------------------------------ called by other threads

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


def make_executor(kind: str, done: Any) -> Executor:
    if kind == "process":
        from jobs.engine.processes import ProcessExecutor

        return ProcessExecutor(done)
    return ThreadExecutor(done)
