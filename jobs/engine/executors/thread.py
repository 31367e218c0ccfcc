"""Where handlers run: sync ones in threads, async ones on an event loop, side by side in one worker."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from django.db import close_old_connections, connections

from jobs.engine.executors.run import run, run_async
from jobs.outcomes import Outcome
from jobs.registry import registry

if TYPE_CHECKING:
    from jobs.engine.worker.running_jobs import RunningJob

Done = Callable[["RunningJob", Outcome], None]


class Executor(Protocol):
    def start(self, job: RunningJob) -> None: ...
    def add_threads_if_stalled(self) -> bool: ...
    def end(self) -> None: ...


def retry_facts(job: RunningJob) -> dict[str, Any]:
    claim = job.claim
    return {"attempt": claim.attempt, "max_retries": claim.max_retries, "retry_policy": claim.retry_policy}


class ThreadExecutor:
    """Threads that take jobs from one queue, as many as there are handlers that block.

    Handlers that return at once share a thread; a job that has waited for one without anything moving gets a new
    one. A handler that never returns keeps its thread, and its slot.
    """

    def __init__(self, done: Done) -> None:
        self.done = done
        self.loop = EventLoop(done)
        self._work: queue.SimpleQueue[RunningJob | None] = queue.SimpleQueue()
        self._threads = 0
        self._at_work: set[RunningJob] = set()
        self._taken = 0
        self._taken_before = -1

    def start(self, job: RunningJob) -> None:
        if registry.get(job.claim.job_type).is_async:
            self.loop.start(job)
            return
        self._work.put(job)
        if not self._threads:
            self._add_thread()

    def add_threads_if_stalled(self) -> bool:
        """Return whether jobs wait for a thread; if so, it is called again within a millisecond or so."""
        if self._work.empty():
            return False
        if self._taken == self._taken_before:
            idle = self._threads - len(self._at_work)  # woken already, and slow to get up: no more than jobs are needed
            for _ in range(self._work.qsize() - idle):
                self._add_thread()
        self._taken_before = self._taken
        return True

    def end(self) -> None:
        for _ in range(self._threads):
            self._work.put(None)
        self.loop.end()

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"handler-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (job := self._work.get()) is not None:
            self._at_work.add(job)
            self._taken += 1
            close_old_connections()
            outcome = run(job.claim.job_type, job.ctx, retry_facts(job)) if job.try_start() else None
            close_old_connections()
            self._at_work.discard(job)
            if outcome is not None:
                self.done(job, outcome)
        connections.close_all()


class EventLoop:
    """One event loop on a thread of its own, started with the first async job."""

    def __init__(self, done: Done) -> None:
        self.done = done
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, job: RunningJob) -> None:
        loop = self._running()
        loop.call_soon_threadsafe(self._spawn, loop, job)

    def end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=[self._loop], name="event-loop", daemon=True).start()
        return self._loop

    def _spawn(self, loop: asyncio.AbstractEventLoop, job: RunningJob) -> None:
        if not job.try_start():
            return
        task = loop.create_task(run_async(job.claim.job_type, job.ctx, retry_facts(job)))
        job.interrupt = lambda: _cancel(loop, task)
        if job.ctx.cancelled:
            task.cancel()
        task.add_done_callback(lambda ended: self._report(job, ended))

    def _report(self, job: RunningJob, task: asyncio.Task[Outcome]) -> None:
        from jobs.outcomes import Stopped

        # Cancelled before its first step, the handler never ran: that is a stop like any other.
        self.done(job, Stopped() if task.cancelled() else task.result())


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Outcome]) -> None:
    loop.call_soon_threadsafe(task.cancel)
