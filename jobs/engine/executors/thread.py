"""The thread executor: sync handlers run in threads, async ones on an event loop, in the same worker."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from django.db import close_old_connections, connections

from jobs.engine.executors.run import run, run_async
from jobs.outcomes import Outcome, Stopped
from jobs.registry import registry

if TYPE_CHECKING:
    from jobs.engine.worker.running_jobs import RunningJob

OnReturn = Callable[["RunningJob", Outcome], None]


class Executor(Protocol):
    """Runs handlers, and calls `on_return` with the outcome of each."""

    def start(self, job: RunningJob) -> None:
        """Run the handler of a claimed job, now or as soon as a thread is free."""

    def add_threads_if_stalled(self) -> bool:
        """Add threads if waiting jobs do not move. Return whether jobs wait for one."""

    def end(self) -> None:
        """Take no more jobs. Handlers in threads go on until they return."""


class ThreadExecutor:
    """Threads that take jobs from one queue, as many as there are handlers that block.

    Handlers that return at once share a thread. Threads are added when jobs wait and no thread has taken one since the
    last look. A handler that never returns keeps its thread, and its slot.
    """

    def __init__(self, on_return: OnReturn) -> None:
        self.on_return = on_return
        self.loop = EventLoop(on_return)
        self._queue: queue.SimpleQueue[RunningJob | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy: set[RunningJob] = set()
        self._taken_count = 0
        self._taken_at_last_look = -1

    def start(self, job: RunningJob) -> None:
        if registry.get(job.claim.job_type).is_async:
            self.loop.start(job)
            return
        self._queue.put(job)
        if not self._threads:
            self._add_thread()

    def add_threads_if_stalled(self) -> bool:
        """Add threads if waiting jobs do not move. Return whether jobs wait: then call again in about a millisecond."""
        if self._queue.empty():
            return False
        if self._taken_count == self._taken_at_last_look:
            # Idle threads have been woken and are slow to start: add only as many as they will not serve.
            idle = self._threads - len(self._busy)
            for _ in range(self._queue.qsize() - idle):
                self._add_thread()
        self._taken_at_last_look = self._taken_count
        return True

    def end(self) -> None:
        for _ in range(self._threads):
            self._queue.put(None)
        self.loop.end()

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._run_jobs, name=f"handler-{self._threads}", daemon=True).start()

    def _run_jobs(self) -> None:
        while (job := self._queue.get()) is not None:
            self._busy.add(job)
            self._taken_count += 1
            close_old_connections()
            outcome = run(job.claim, job.ctx) if job.try_start() else None
            close_old_connections()
            self._busy.discard(job)
            if outcome is not None:
                self.on_return(job, outcome)
        connections.close_all()


class EventLoop:
    """One event loop on a thread of its own, started with the first async job."""

    def __init__(self, on_return: OnReturn) -> None:
        self.on_return = on_return
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, job: RunningJob) -> None:
        loop = self._ensure_loop()
        loop.call_soon_threadsafe(self._spawn, loop, job)

    def end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run_loop, args=[self._loop], name="event-loop", daemon=True).start()
        return self._loop

    def _spawn(self, loop: asyncio.AbstractEventLoop, job: RunningJob) -> None:
        if not job.try_start():
            return
        task = loop.create_task(run_async(job.claim, job.ctx))
        job.interrupt = lambda: _cancel_task(loop, task)
        if job.ctx.cancelled:
            task.cancel()
        task.add_done_callback(lambda done: self._report_outcome(job, done))

    def _report_outcome(self, job: RunningJob, task: asyncio.Task[Outcome]) -> None:
        # A task that was cancelled before its first step never ran its handler: that is a stop like any other.
        self.on_return(job, Stopped() if task.cancelled() else task.result())


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _cancel_task(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Outcome]) -> None:
    loop.call_soon_threadsafe(task.cancel)
