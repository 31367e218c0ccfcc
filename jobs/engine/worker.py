"""The loop: claim → execute → record.

One thread claims and records; handlers run in an executor; heartbeat, watchdog, scribe, listener and housekeeping
have threads of their own. A signal only sets a flag, so that no claim and no finish is cut in two.
"""

from __future__ import annotations

import logging
import queue
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from jobs import actors, db
from jobs.conf import conf
from jobs.engine import ending, lanes, recovery, roster, turn
from jobs.engine.claim import Claim, Claimer, Serves, batch_size, foreign_work
from jobs.engine.connections import MISSING, Outage, prefer_indexes, short_timeouts
from jobs.engine.context import CaptureLogs, Context
from jobs.engine.execution import decide_retry
from jobs.engine.executors import Executor, ThreadExecutor, retry_facts
from jobs.engine.heartbeat import STUBBORN_SEC, Heartbeat, Watchdog, margin
from jobs.engine.housekeeping import Housekeeper
from jobs.engine.identity import Identity
from jobs.engine.leases import Held, Leases, named
from jobs.engine.listener import Listener
from jobs.engine.scribe import Scribe, write
from jobs.engine.selection import limits
from jobs.models import Job, WorkerState
from jobs.outcomes import Completed, Failed, Outcome, Skipped, Stopped
from jobs.salvage import salvage_text
from jobs.states import Cause

logger = logging.getLogger("jobs.engine.worker")
CAPTURED = (logging.getLogger(), logging.getLogger("jobs.run"))
LINGER_SEC = 0.002  # how long the first end of a batch waits for company
BACKLOG_SEC = 0.001  # how soon jobs that wait for a thread are looked after
SOON_SEC = 0.05  # when to look again at lanes, or at jobs, that somebody else had in hand
ENOUGH_LOOKS = 3  # then a burst takes what is ready, and not for us, as somebody else's
RECHECK_SEC = 1.8  # when to ask again about jobs that were not admitted
LULL_SEC = 1.0  # jobs whose leases were lost are spoken of together: an outage loses all of them
FOREIGN_SEC = 30.0  # how often we look whether jobs that are not ours stand in the queue


class News(Enum):
    """What others tell the loop."""

    NONE = 0  # turn, whatever it is
    READY = 1  # something may be ready
    LANES = 2  # lanes have changed, too


Event = tuple[Held, Outcome] | News


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
        self.actor = actors.worker(self.me.name)
        self.leases = Leases()
        self.scribe = Scribe(self.leases)
        self.roster = roster.Entry(self.me, options)
        self.heartbeat = Heartbeat(self.leases, on_beat=self._on_beat)
        self.watchdog = Watchdog(self.leases, on_timeout=self._on_timeout, on_stubborn=self._nudge)
        self.listener = Listener(on_ready=self.wake, on_stop=self.heartbeat.nudge)
        self.housekeeper = Housekeeper()
        self.executor: Executor = make_executor(options.executor, self._done)
        self.stuck: set[Held] = set()
        self._capture = CaptureLogs()
        self._ended: list[tuple[Held, Outcome]] = []
        self._leaving: set[Held] = set()  # their end is written, not committed
        self._recorded: set[Held] = set()
        self._forgotten: list[Held] = []  # their leases were lost; to be said
        self._spoke_at = 0.0
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._end = threading.Event()
        self._outage = Outage(logger, "worker", self._end)
        self._signals = 0
        self._stopping_since: float | None = None
        self._hungry = True  # there may be more to claim
        self._next_slot = 0
        self._poll_at = 0.0  # look at everything, whether or not somebody told us
        self._due_at = 0.0  # the next job's time comes
        self._lanes_changed = True
        self._nothing_ready = False  # as far as we looked, just now
        self._in_vain = 0  # how often in a row we looked and did not get what is ready
        self._foreign_at = 0.0
        self._claim_took = 0.0  # seconds, the last time
        self._cut_short = False  # the last turn was: by an outage, or by something that the database refused
        self._told: Any = None  # the connection that knows what we want of it
        self._shares_commits = db.is_sqlite()
        self._claimer = Claimer(self.me.name, options.serves, self.me.incarnation)

    # ------------------------------------------------------------------ life

    def run(self) -> int:
        """Work until told to stop (or, in burst mode, until nothing is left). Returns the exit code."""
        self._begin()
        try:
            while not self._is_over():
                self._gather()
                self._try_a_turn()
                self._press()
                if time.monotonic() >= self._spoke_at + LULL_SEC:
                    self._speak_of_the_forgotten()
            return 0
        finally:
            self._speak_of_the_forgotten()
            self._finish()

    def wake(self, lanes_changed: bool = True) -> None:
        """Something may have become ready. From any thread: only the loop itself knows what it has looked at since."""
        self._events.put(News.LANES if lanes_changed else News.READY)

    def stop(self, *_: Any) -> None:
        """Ask for an orderly end; asked twice, end at once. Fit to be a signal handler."""
        self._signals += 1
        self._nudge()

    def _nudge(self) -> None:
        """Make the loop turn now."""
        self._events.put(News.NONE)

    def listen_to_signals(self) -> None:
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def _begin(self) -> None:
        while not self._signals:
            with self._outage.survive(refusals=False):  # a busy SQLite may keep a newcomer waiting
                self._enter()
                return

    def _enter(self) -> None:
        limits.sync()
        limits.warn_of_idle_slots(self.options.concurrency, self.options.serves)
        recovered = recovery.recover_former_life(self.me)
        if recovered:
            logger.warning("recovered %d jobs of a former life of worker %s", recovered, self.me.name)
        self.roster.enter()
        self._start_threads()

    def _start_threads(self) -> None:
        for captured in CAPTURED:
            captured.addHandler(self._capture)
        self.heartbeat.start()
        self.watchdog.start()
        self.scribe.start()
        if Listener.is_possible():
            self.listener.start()
        if self.options.housekeeping:
            self.housekeeper.start()
        logger.info("worker %s started: %s", self.me.name, self.roster.summary())

    def _finish(self) -> None:
        for thread in (self.housekeeper, self.listener, self.scribe, self.heartbeat, self.watchdog):
            thread.end()
        self.executor.end()
        for captured in CAPTURED:
            captured.removeHandler(self._capture)
        for thread in (self.housekeeper, self.scribe, self.heartbeat):
            if thread.is_alive():
                thread.join(2.0)
        with self._outage.survive():
            self.roster.leave()
        logger.info("worker %s: shutdown ended, %d jobs left behind", self.me.name, len(self.leases))

    def _is_over(self) -> bool:
        if self._signals > 1:
            return True
        busy = bool(len(self.leases) or self._ended)
        if self._signals or self.roster.request == WorkerState.STOPPING:
            if self._stopping_since is None:
                self._stopping_since = time.monotonic()
                logger.info("worker %s: shutdown begun, %d jobs running", self.me.name, len(self.leases))
                self.roster.state = WorkerState.STOPPING
            return not busy or self._has_waited_enough()
        return self.options.burst and not busy and not self._hungry and self._is_exhausted()

    def _is_exhausted(self) -> bool:
        """Of a burst. What somebody else has in hand, at this very moment, may be for us at the next one."""
        with self._outage.survive():
            self._look_again_later()
            if not self._lanes_changed and (self._nothing_ready or self._in_vain >= ENOUGH_LOOKS):
                return True
            self._poll_at = time.monotonic() + SOON_SEC
        return False

    # ------------------------------------------------------------------ one turn

    def _gather(self) -> None:
        """Wait for something to happen; take all ends that have come, with a moment's patience for a batch."""
        if self._take_event(min(self._pause(), LULL_SEC) if self._forgotten else self._pause()):
            patience = time.monotonic() + LINGER_SEC
            while len(self._ended) < len(self.leases) and (left := patience - time.monotonic()) > 0:
                self._take_event(left)
        while not self._events.empty():
            self._take_event(0.0)

    def _take_event(self, seconds: float) -> bool:
        """Whether it was the end of a job."""
        try:
            event = self._events.get(timeout=seconds) if seconds > 0 else self._events.get_nowait()
        except queue.Empty:
            return False
        if not isinstance(event, News):
            self._ended.append(event)
            return True
        if event != News.NONE:
            self._hungry, self._in_vain = True, 0
        self._lanes_changed |= event == News.LANES
        return False

    def _pause(self) -> float:
        """How long to wait for an event before the next turn."""
        if self.executor.has_backlog():
            return BACKLOG_SEC
        if self._outage.is_on or self._ended:
            return 0.0
        if self._stopping_since is not None:
            return 0.1
        if not self._may_claim() or not self._free():
            return 0.5
        if self._hungry:
            return 0.0
        return max(min(self._poll_at, self._due_at) - time.monotonic(), 0.0)

    def _is_time(self) -> bool:
        return time.monotonic() >= min(self._poll_at, self._due_at)

    def _try_a_turn(self) -> None:
        with self._outage.survive():
            self._settle_in()
            if self._outage.is_on or self._cut_short:
                self._hungry = self._lanes_changed = True  # what we were about to learn, we did not
                self._return_unknown_claims()
            if self._cut_short and not self._outage.is_on:
                self._record_apart()
            self._cut_short = True
            self._turn()
            self._cut_short = False

    def _turn(self) -> None:
        self._write_last_words()
        self._leaving.clear()
        self._recorded.clear()
        try:
            with self._one_commit():
                ends = self._judge_all(self._ended)
                if not self._exchange(ends):
                    self._record(ends)
                    if self._may_claim() and self._free() and (self._hungry or self._is_time()):
                        self._claim()
        finally:
            self._drop_recorded()

    def _settle_in(self) -> None:
        """Tell a new connection what we want of it."""
        if self._told is None or db.connection().connection is not self._told:
            short_timeouts(conf.LEASE_SEC * 2 / 3)
            prefer_indexes()
            self._told = db.connection().connection

    @contextmanager
    def _one_commit(self) -> Iterator[None]:
        """SQLite pays for each commit: there the finish and the next claim share one.

        What follows from either waits for it (`db.after_commit`): a rollback must leave us holding what we held.
        """
        if not (self._ended and self._shares_commits):
            yield
            return
        with db.atomic():
            yield

    def _exchange(self, ends: list[tuple[Held, ending.End]]) -> bool:
        """Finish and claim in one statement, if nothing has to be looked at in between."""
        if not ends or self._lanes_changed or self._is_time() or not self._may_claim() or self._is_foreign_time():
            return False
        if any(held.claim.target is not None or end.group_id is not None for held, end in ends):
            return False
        if not self._claimer.is_plain or self._shares_commits:
            return False
        slots = self._slots(batch_size(self._free() + len(ends)))
        sent, results = time.monotonic(), [end for _, end in ends]
        verdicts, claims = turn.finish_and_claim(
            self._claimer, results, slots, actor=self.actor, lease_sec=conf.LEASE_SEC
        )
        self._settle_all(ends, verdicts)
        self._start_all(claims, sent)
        if claims:  # having got none at all, ask again properly
            self._hungry = len(claims) == len(slots)
        if not self._hungry:
            self._look_again_later()
            self._look_again_soon(len(claims))
        return True

    def _may_claim(self) -> bool:
        return self._stopping_since is None and not self._signals and self.roster.request == ""

    def _free(self) -> int:
        return self.options.concurrency - len(self.leases) - len(self.stuck) + len(self._leaving)

    # ------------------------------------------------------------------ claim

    def _claim(self) -> None:
        self._look_for_foreign_work()
        looked = self._open_gates()
        if looked and self._nothing_ready:
            self._hungry = False
            return
        slots = self._slots(batch_size(self._free()))
        sent = time.monotonic()
        claims = self._claimer.claim(slots, lease_sec=conf.LEASE_SEC)
        self._claim_took = time.monotonic() - sent
        self._hungry = len(claims) == len(slots)
        db.after_commit(lambda: self._start_all(claims, sent))
        if not self._hungry:
            if not looked:
                self._look_again_later()
            self._look_again_soon(len(claims))
        if self._lanes_changed:
            self._poll_at = time.monotonic() + SOON_SEC

    def _open_gates(self) -> bool:
        """Let forward what waited for its time or its lane, if there may be any. Whether it looked for times."""
        is_time = self._is_time()
        if is_time and self._look_again_later():
            self._lanes_changed |= lanes.wake_due() > 0
            self._look_again_later()
        if self._lanes_changed:
            self._lanes_changed = lanes.promote_round().is_unfinished
            self._nothing_ready = False
        return is_time

    def _look_again_later(self) -> bool:
        """Looks at times and lanes. Says whether the time of some job has come already."""
        now = time.monotonic()
        often = self._claimer.saturated or not self.listener.listening  # nobody says when a limit has room again
        pause = conf.POLL_SEC * (1 if often else 10)
        if self._claimer.denied:  # asking about many takes its time, and on SQLite everybody's
            pause = max(min(pause, RECHECK_SEC), 10 * self._claim_took)
        self._poll_at = now + pause * random.uniform(0.9, 1.1)  # noqa: S311 — spreads the polls of many workers
        ahead = lanes.look_ahead()
        self._lanes_changed |= ahead.marked
        self._nothing_ready = not ahead.ready
        self._due_at = self._poll_at if ahead.due_sec is None else now + max(ahead.due_sec, 0.0)
        return ahead.due_sec is not None and ahead.due_sec <= 0

    def _look_again_soon(self, got: int) -> None:
        """What is ready and was not for us: somebody may have had it in hand, for just that moment."""
        self._in_vain = 0 if got or self._nothing_ready else self._in_vain + 1
        if not self._nothing_ready and not self._claimer.saturated:
            self._poll_at = min(self._poll_at, time.monotonic() + SOON_SEC * 2 ** min(self._in_vain, 16))

    def _start_all(self, claims: Sequence[Claim], sent: float) -> None:
        for each in claims:
            self._start(each, sent)

    def _start(self, claimed: Claim, sent: float) -> None:
        ctx = Context(
            job_id=claimed.id,
            params=claimed.params,
            attempt=claimed.attempt,
            fence=claimed.fence,
            resume_from=claimed.checkpoint,
            artifacts=claimed.artifacts,
            token_limit=claimed.token_limit,
            tokens_used=claimed.tokens_used,
            resource=claimed.resource,
            traceparent=claimed.traceparent,
            on_write=self.scribe.nudge,
        )
        held = Held(claimed, ctx, deadline=sent + conf.LEASE_SEC - margin())
        self.leases.add(held)
        logger.info("claimed job %s (%s), attempt %d", claimed.id, claimed.job_type, claimed.attempt)
        self.executor.start(held)

    def _return_unknown_claims(self) -> None:
        """A claim may be committed, and its reply lost, or what came after it refused: nobody runs what it took."""
        known = [held.id for held in (*self.leases, *self.stuck)]
        mine = Job.objects.running().filter(lease_owner__startswith=f"{self.me.incarnation}#")
        for job in mine.exclude(pk__in=known):
            assert job.lease_token is not None
            ending.hand_back(job.pk, job.lease_token, actor=self.actor, reason="the reply to its claim was lost")

    def _slots(self, free: int) -> list[int]:
        """Numbers from a wide pool: an index walks all dead entries of a name that is used again and again."""
        taken = {held.slot for held in (*self.leases, *self.stuck)}
        numbers: list[int] = []
        while len(numbers) < free:
            self._next_slot = (self._next_slot + 1) % (64 * self.options.concurrency)
            if self._next_slot not in taken:
                numbers.append(self._next_slot)
        return numbers

    def _is_foreign_time(self) -> bool:
        return not self.options.serves.choosy and time.monotonic() >= self._foreign_at

    def _look_for_foreign_work(self) -> None:
        if self._is_foreign_time():
            self._foreign_at = time.monotonic() + FOREIGN_SEC
            choosy = foreign_work(self.options.serves)
            self._claimer.serves = replace(self.options.serves, choosy=choosy)

    # ------------------------------------------------------------------ record

    def _done(self, held: Held, outcome: Outcome) -> None:
        """Called by executors, from any thread."""
        held.returned = True
        self._events.put((held, outcome))

    def _write_last_words(self) -> None:
        """Before any transaction of ours: on SQLite the scribe, in the middle of the same, would wait for its end."""
        for held, _ in self._ended:
            if held not in self.stuck:
                write(held)

    def _judge_all(self, ended: Sequence[tuple[Held, Outcome]]) -> list[tuple[Held, ending.End]]:
        """How handlers ended; those that only stopped are handed back. What cannot be written now is kept."""
        ends: list[tuple[Held, ending.End]] = []
        for held, outcome in ended:
            if held in self.stuck:
                self._unstick(held)
            elif held.lost:
                self._forget(held)
            else:
                outcome = self._judged(held, outcome)
                if isinstance(outcome, Completed | Skipped | Failed):
                    end = ending.End(held.id, held.claim.lease_token, outcome, held.claim.group_id)
                    ends.append((held, end))
                else:
                    self._hand_back(held, outcome)
        return ends

    def _record(self, ends: list[tuple[Held, ending.End]]) -> None:
        if ends:
            self._settle_all(ends, ending.finish([end for _, end in ends], actor=self.actor))

    def _record_apart(self) -> None:
        """One end is refused, and with it all that are said together: each by itself, and that one as a failure."""
        try:
            for place, (held, outcome) in enumerate(self._ended):
                try:
                    with db.atomic():
                        self._record(self._judge_all([(held, outcome)]))
                except MISSING:
                    raise
                except DatabaseError as refusal:
                    logger.exception("job %s: the database refuses its end; it fails", held.id)
                    error = salvage_text(f"its end ({type(outcome).__name__}) could not be recorded: {refusal}", 2000)
                    self._ended[place] = (held, Failed(error, "the database refused its end"))
        finally:
            self._drop_recorded()

    def _drop_recorded(self) -> None:
        self._ended = [each for each in self._ended if each[0] not in self._recorded]

    def _settle_all(self, ends: list[tuple[Held, ending.End]], verdicts: dict[UUID, ending.Verdict]) -> None:
        for held, end in ends:
            self._log_end(held, end.outcome)
        self._settle({held: verdicts[held.id] for held, _ in ends})

    def _judged(self, held: Held, outcome: Outcome) -> Outcome:
        """A handler that stopped because its time was up has failed."""
        if held.timed_out and not isinstance(outcome, Completed | Skipped):
            return self._timeout(held, retry=True)
        return outcome

    def _hand_back(self, held: Held, outcome: Outcome) -> None:
        artifacts = outcome.artifacts if isinstance(outcome, Stopped) else None
        reason = f"worker {self.me.name} shut down"
        token = held.claim.lease_token
        verdict = ending.hand_back(held.id, token, actor=self.actor, reason=reason, artifacts=artifacts)
        self._settle({held: verdict})

    def _settle(self, verdicts: dict[Held, ending.Verdict]) -> None:
        """Their slots are free for the next claim; they are let go when their ends are committed."""
        self._leaving.update(verdicts)
        self._lanes_changed |= any(held.claim.target is not None for held in verdicts)
        self._hungry = True
        db.after_commit(lambda: self._let_all_go(verdicts))

    def _let_all_go(self, verdicts: dict[Held, ending.Verdict]) -> None:
        for held, verdict in verdicts.items():
            self._let_go(held, verdict)

    def _log_end(self, held: Held, outcome: Outcome) -> None:
        if isinstance(outcome, Failed):
            retry = "not retried" if outcome.retry_in is None else f"retried in {outcome.retry_in:g} s"
            logger.warning("job %s (%s) failed, %s: %s", held.id, held.claim.job_type, retry, outcome.reason)
        else:
            logger.info("job %s (%s) ended: %s", held.id, held.claim.job_type, type(outcome).__name__.lower())

    def _let_go(self, held: Held, verdict: ending.Verdict) -> None:
        if verdict == ending.Verdict.LOST:
            self._forgotten.append(held)
        self.leases.drop(held)
        self._leaving.discard(held)
        self._recorded.add(held)
        self._hungry = True

    def _forget(self, held: Held) -> None:
        self._let_go(held, ending.Verdict.LOST)

    def _speak_of_the_forgotten(self) -> None:
        if self._forgotten:
            logger.warning("after their leases were lost, the ends of %s were not recorded", named(self._forgotten))
            self._forgotten.clear()
            self._spoke_at = time.monotonic()

    # ------------------------------------------------------------------ timeouts and shutdown

    def _on_timeout(self, held: Held) -> None:
        """Called by the watchdog."""
        logger.warning("job %s ran longer than %s s; stopping it", held.id, held.claim.max_runtime_sec)
        held.ask_to_stop(None)
        if held.kill is not None:
            held.kill()

    def _timeout(self, held: Held, *, retry: bool) -> Failed:
        error = f"timeout: ran longer than {held.claim.max_runtime_sec:g} s"
        failed = Failed(error=error, reason="timeout", cause=Cause.TIMEOUT)
        if not retry:
            return failed
        delay = decide_retry(held.claim.job_type, **retry_facts(held), cause=Cause.TIMEOUT, error=None)
        return replace(failed, retry_in=delay)

    def _press(self) -> None:
        """Deal with jobs that wait for a thread, and with handlers that should have stopped and have not."""
        if self.executor.has_backlog():
            self.executor.press_on()
        now = time.monotonic()
        for held in self.leases:
            asked = held.asked_at
            if held.timed_out and asked is not None and now - asked > STUBBORN_SEC and held.kill is None:
                self._give_up_on(held)
        grace = conf.SHUTDOWN_GRACE_SEC
        if self._stopping_since is not None and now - self._stopping_since > grace:
            for held in self.leases:
                if held.asked_at is None:
                    held.ask_to_stop(None)
                if held.withdraw():  # its process, say, was long in coming
                    self._done(held, Stopped())

    def _give_up_on(self, held: Held) -> None:
        """A thread cannot be ended by force: its job fails, its slot stays taken until it returns."""
        logger.error("job %s ignores its stop; its slot is stuck", held.id)
        with self._outage.survive():
            end = ending.End(held.id, held.claim.lease_token, self._timeout(held, retry=False), held.claim.group_id)
            ending.finish([end], actor=self.actor)
            held.lost = True
            self.stuck.add(held)
            self.leases.drop(held)

    def _unstick(self, held: Held) -> None:
        logger.warning("job %s returned at last; its slot is free again", held.id)
        self.stuck.discard(held)
        self._recorded.add(held)
        self._hungry = True

    def _has_waited_enough(self) -> bool:
        assert self._stopping_since is not None
        waited = time.monotonic() - self._stopping_since
        if waited <= conf.SHUTDOWN_GRACE_SEC + STUBBORN_SEC:
            return False
        killable: Sequence[Held] = [held for held in self.leases if held.kill is not None]
        for held in killable:
            assert held.kill is not None
            held.kill()
        return not killable or waited > conf.SHUTDOWN_GRACE_SEC + 2 * STUBBORN_SEC

    def _on_beat(self) -> None:
        before = self.roster.request
        self.roster.beat(busy=len(self.leases), stuck=len(self.stuck))
        if self.roster.request != before:
            logger.info("worker %s was asked to become %s", self.me.name, self.roster.request or WorkerState.RUNNING)
            self.wake()


def make_executor(kind: str, done: Any) -> Executor:
    if kind == "process":
        from jobs.engine.processes import ProcessExecutor

        return ProcessExecutor(done)
    return ThreadExecutor(done)
