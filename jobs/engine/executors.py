"""Where handlers run: sync ones in threads, async ones on an event loop, side by side in one worker."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from django.db import close_old_connections, connections

from jobs.engine.execution import run, run_async
from jobs.engine.leases import Held
from jobs.outcomes import Outcome
from jobs.registry import registry

Done = Callable[[Held, Outcome], None]


class Executor(Protocol):
    def start(self, held: Held) -> None: ...
    def has_backlog(self) -> bool: ...
    def press_on(self) -> None: ...
    def end(self) -> None: ...


def retry_facts(held: Held) -> dict[str, Any]:
    claim = held.claim
    return {"attempt": claim.attempt, "max_retries": claim.max_retries, "retry_policy": claim.retry_policy}


class ThreadExecutor:
    """Threads that take jobs from one queue, as many as there are handlers that block.

    Handlers that return at once share a thread; a job that has waited for one without anything moving gets a new
    one. A handler that never returns keeps its thread, and its slot.
    """

    def __init__(self, done: Done) -> None:
        self.done = done
        self.loop = EventLoop(done)
        self._work: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self._threads = 0
        self._at_work: set[Held] = set()
        self._taken = 0
        self._taken_before = -1

    def start(self, held: Held) -> None:
        if registry.get(held.claim.job_type).is_async:
            self.loop.start(held)
            return
        self._work.put(held)
        if not self._threads:
            self._add_thread()

    def has_backlog(self) -> bool:
        return not self._work.empty()

    def press_on(self) -> None:
        """Called every millisecond or so while there is a backlog."""
        if self._taken == self._taken_before:
            idle = self._threads - len(self._at_work)  # woken already, and slow to get up: no more than jobs are needed
            for _ in range(self._work.qsize() - idle):
                self._add_thread()
        self._taken_before = self._taken

    def end(self) -> None:
        for _ in range(self._threads):
            self._work.put(None)
        self.loop.end()

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"handler-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (held := self._work.get()) is not None:
            self._at_work.add(held)
            self._taken += 1
            close_old_connections()
            outcome = run(held.claim.job_type, held.ctx, retry_facts(held)) if held.begin() else None
            close_old_connections()
            self._at_work.discard(held)
            if outcome is not None:
                self.done(held, outcome)
        connections.close_all()


class EventLoop:
    """One event loop on a thread of its own, started with the first async job."""

    def __init__(self, done: Done) -> None:
        self.done = done
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, held: Held) -> None:
        loop = self._running()
        loop.call_soon_threadsafe(self._spawn, loop, held)

    def end(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=[self._loop], name="event-loop", daemon=True).start()
        return self._loop

    def _spawn(self, loop: asyncio.AbstractEventLoop, held: Held) -> None:
        if not held.begin():
            return
        task = loop.create_task(run_async(held.claim.job_type, held.ctx, retry_facts(held)))
        held.interrupt = lambda: _cancel(loop, task)
        if held.ctx.cancelled:
            task.cancel()
        task.add_done_callback(lambda ended: self._report(held, ended))

    def _report(self, held: Held, task: asyncio.Task[Outcome]) -> None:
        from jobs.outcomes import Stopped

        # Cancelled before its first step, the handler never ran: that is a stop like any other.
        self.done(held, Stopped() if task.cancelled() else task.result())


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Outcome]) -> None:
    loop.call_soon_threadsafe(task.cancel)
