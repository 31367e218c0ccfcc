"""Wait for the ends of jobs: one thread and one connection for all callers of a process, however many they are.

The thread follows each retry chain to its latest attempt and sets the result of the caller's future. On PostgreSQL it
listens, and a row (`Waiter`) asks the statement that ends a job for a notification. The row may be committed while that
statement runs, which then sends none; so the thread also polls: soon at first, ever less often later. On SQLite it
polls after each commit.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID, uuid4

from django.db.models.functions import Now

from jobs.engine import facts
from jobs.errors import NotFound, WaitTimeout
from jobs.models import Job, Waiter
from jobs.models.expressions import from_now
from jobs.notifications import EndListener
from jobs.outages import OutageGuard, close_connection
from jobs.states import TERMINAL

logger = logging.getLogger("jobs.waiting")
FIRST_POLL_SEC = 0.05
MAX_POLL_SEC, MAX_LISTENING_POLL_SEC = 1.0, 5.0
COMMIT_POLL_SEC = 0.02  # how often SQLite's file is checked for commits
IDLE_SEC = 1.0  # the thread keeps its connection for so long after the last call
ROW_SEC, RENEW_SEC = 60.0, 20.0
BATCH_SIZE = 500


@dataclass
class Call:
    """A caller that waits. `job_id` is the attempt that it waits for; `state` is as it was last read."""

    job_id: UUID
    timeout: float | None
    future: Future[Job] = field(default_factory=Future)
    state: str = "in an unknown state, because the database does not answer"
    deadline: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = None if self.timeout is None else time.monotonic() + self.timeout


def wait_for_end(call: Call) -> None:
    """Let the call's future get the latest attempt once it has ended, unless it is done. Never blocks.

    The future raises NotFound if there is no such job, and WaitTimeout after its timeout in seconds.
    """
    if not call.future.done():
        _add_call(call)


def read_latest_attempt(job_id: UUID) -> Job | None:
    """Return the latest attempt of the job's retry chain with its run, on the caller's connection."""
    latest = facts.find_latest_attempts([job_id]).get(job_id)
    return Job.objects.select_related("run").filter(pk=job_id if latest is None else latest.id).first()


def describe_state(status: str, attempt: int) -> str:
    return f"{status}, attempt {attempt}" if attempt > 1 else status


def delete_expired_rows() -> int:
    """Delete the rows of processes that are gone. Reads before it writes."""
    expired = Waiter.objects.filter(expires_at__lt=Now())
    return expired.delete()[0] if expired.exists() else 0


_lock = threading.Lock()
_thread: WaiterThread | None = None


def _add_call(call: Call) -> None:
    global _thread
    with _lock:
        if (thread := _thread) is None:
            thread = WaiterThread()
            thread.start()
            _thread = thread
        thread.new_calls.append(call)
    call.future.add_done_callback(lambda future: thread.wake() if future.cancelled() else None)
    thread.wake()


def _reset_after_fork() -> None:
    """Start anew in a forked process: it has no threads."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


os.register_at_fork(after_in_child=_reset_after_fork)


class WaiterThread(threading.Thread):
    """Waits for the jobs of all calls of this process; ends when there have been none for a while."""

    def __init__(self) -> None:
        super().__init__(name="waiter", daemon=True)
        self.new_calls: list[Call] = []  # guarded by `_lock`
        self._calls: list[Call] = []
        self._process = uuid4()
        self._rows: set[UUID] = set()  # the jobs that this process has rows of
        self._renew_at = 0.0
        self._outage = OutageGuard(logger, "waiting", is_listener=True)
        self._listener = EndListener()
        self._pause, self._poll_at = FIRST_POLL_SEC, 0.0
        self._idle_since = time.monotonic()

    def wake(self) -> None:
        self._listener.wake()

    def run(self) -> None:
        with closing(self._listener):
            while not self._is_over():
                try:
                    with self._outage.survive(rejections=False):
                        if self._listener.start():  # it has missed earlier notifications
                            self._poll_at = 0.0
                        self._run_round()
                except Exception as error:  # noqa: BLE001 — the callers get it
                    for call in self._remove_calls():
                        _resolve(call, error)
            close_connection()

    def _is_over(self) -> bool:
        """Take new calls; return whether there have been none for a while."""
        global _thread
        with _lock:
            if new := self.new_calls:
                self.new_calls = []
                self._calls += new
                self._pause, self._poll_at = FIRST_POLL_SEC, 0.0
            if self._calls:
                self._idle_since = time.monotonic()
            elif time.monotonic() - self._idle_since > IDLE_SEC:
                if _thread is self:
                    _thread = None
                return True
        return False

    def _remove_calls(self) -> list[Call]:
        with _lock:
            calls, self._calls, self.new_calls = self._calls + self.new_calls, [], []
        return calls

    def _run_round(self) -> None:
        """Check the jobs that may have ended, then wait for a notification or a commit."""
        now = time.monotonic()
        is_due = any(call.deadline is not None and call.deadline <= now for call in self._calls)
        if now >= self._poll_at or is_due:
            self._check_jobs(None)
            self._poll_at = time.monotonic() + self._pause
            longest = MAX_LISTENING_POLL_SEC if self._listener.is_listening else MAX_POLL_SEC
            self._pause = min(self._pause * 2, longest)
        self._end_late_calls()
        self._delete_rows()
        with _lock:
            if self.new_calls:
                return
        self._outage.mark_active()
        ended_ids = self._listener.wait(self._next_wait(), COMMIT_POLL_SEC)
        if ended_ids is None or ended_ids:
            self._check_jobs(ended_ids)
            self._delete_rows()

    def _next_wait(self) -> float:
        """Return for how many seconds to wait at most."""
        if not self._calls:
            return IDLE_SEC
        deadlines = [call.deadline for call in self._calls if call.deadline is not None]
        return max(min([self._poll_at, *deadlines]) - time.monotonic(), 0.0)

    def _check_jobs(self, job_ids: Collection[UUID] | None) -> None:
        """Resolve the calls whose jobs have ended: of these jobs, or of all.

        A row that was inserted now may be too late for an end that was committed before it: read again.
        """
        self._read(job_ids)
        while self._insert_rows():
            self._read(None)

    def _read(self, job_ids: Collection[UUID] | None) -> None:
        """Read the jobs. Calls of superseded attempts wait for the next attempt."""
        calls: dict[UUID, list[Call]] = {}
        for call in self._calls:
            if not call.future.done() and (job_ids is None or call.job_id in job_ids):
                calls.setdefault(call.job_id, []).append(call)
        while calls:
            superseding: dict[UUID, list[Call]] = {}
            for batch in _split(list(calls)):
                states = _read_states(batch)
                ended = [job_id for job_id, state in states.items() if state.status in TERMINAL]
                latest = facts.find_latest_attempts(ended)
                final = [job_id for job_id in ended if job_id not in latest]
                jobs = Job.objects.select_related("run").in_bulk(final) if final else {}
                for job_id in batch:
                    for call in calls[job_id]:
                        if job_id in latest:
                            call.job_id = latest[job_id].id
                            superseding.setdefault(call.job_id, []).append(call)
                        elif job_id in jobs:
                            _resolve(call, jobs[job_id])
                        elif job_id not in states:
                            _resolve(call, NotFound(f"There is no job {job_id}."))
                        else:
                            call.state = describe_state(*states[job_id])
            calls = superseding
        self._calls = [call for call in self._calls if not call.future.done()]

    def _insert_rows(self) -> bool:
        """Insert or extend the rows of this process where it is time; return whether there are new ones."""
        if not self._listener.is_listening:
            return False
        now = time.monotonic()
        job_ids = {call.job_id for call in self._calls if call.deadline is None or call.deadline > now}
        new = job_ids - self._rows
        if is_due := now >= self._renew_at:
            self._renew_at = now + RENEW_SEC
        for batch in _split(sorted(job_ids if is_due else new)):
            Waiter.objects.bulk_create(
                [Waiter(job_id=job_id, process=self._process, expires_at=from_now(ROW_SEC)) for job_id in batch],
                update_conflicts=True,
                unique_fields=["job_id", "process"],
                update_fields=["expires_at"],
            )
            self._rows |= set(batch)
        return bool(new)

    def _delete_rows(self) -> None:
        """Delete the rows that no call needs any more."""
        self._calls = [call for call in self._calls if not call.future.done()]
        for batch in _split(sorted(self._rows - {call.job_id for call in self._calls})):
            Waiter.objects.filter(process=self._process, job_id__in=batch).delete()
            self._rows -= set(batch)

    def _end_late_calls(self) -> None:
        now = time.monotonic()
        for call in self._calls:
            if call.deadline is not None and call.deadline <= now:
                _resolve(call, WaitTimeout(call.job_id, call.timeout, call.state))


class _State(NamedTuple):
    status: str
    attempt: int


def _read_states(job_ids: Collection[UUID]) -> dict[UUID, _State]:
    rows = Job.objects.filter(pk__in=job_ids).order_by().values_list("pk", *_State._fields)
    return {job_id: _State(*state) for job_id, *state in rows}


def _split(job_ids: list[UUID]) -> Iterator[list[UUID]]:
    for start in range(0, len(job_ids), BATCH_SIZE):
        yield job_ids[start : start + BATCH_SIZE]


def _resolve(call: Call, outcome: Job | Exception) -> None:
    """Set the result of the call, unless it has one or its caller has gone."""
    if not call.future.done() and call.future.set_running_or_notify_cancel():
        if isinstance(outcome, Exception):
            call.future.set_exception(outcome)
        else:
            call.future.set_result(outcome)
