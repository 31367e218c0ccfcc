"""The main function of a process that runs one job. It is forked from a server that has loaded Django already."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from jobs import tracing
from jobs.engine.executors.run import AttemptFields, Context, JobLogHandler, run, run_async
from jobs.log_formats import WorkerLog, name_worker
from jobs.outcomes import Outcome
from jobs.registry import registry
from jobs.states import StopMode

PR_SET_PDEATHSIG = 1
CALL_HANDLER = "go"  # the worker's first message: without it, the handler must not be called


class LogOptions(NamedTuple):
    """The name of the worker, and how it writes its log; None: the logging of the site."""

    worker: str
    log: WorkerLog | None


class ChildJob(NamedTuple):
    """The part of a claim that the child process needs beside the fields of its context."""

    job_type: str
    attempt: int
    max_retries: int
    retry_policy: dict[str, Any]

    @classmethod
    def from_attempt(cls, job: AttemptFields) -> ChildJob:
        return cls(job.job_type, job.attempt, job.max_retries, job.retry_policy)


def main(pipe: Connection, job: ChildJob, ctx_fields: dict[str, Any], log_options: LogOptions) -> None:
    """Run the handler; send its progress and, at the end, its outcome."""
    # Own session, own group: the handler's children can be killed with it, and the terminal's Ctrl-C does not reach it.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        should_run = pipe.recv() == CALL_HANDLER
    except (EOFError, OSError):
        should_run = False
    if not should_run:
        return
    sending = threading.Lock()

    def send(kind: str, content: Any) -> None:
        with sending, contextlib.suppress(OSError):
            pipe.send((kind, content))

    ctx = Context(**ctx_fields, on_write=lambda: send("writes", ctx.take_writes()))
    if log_options.log is not None:
        log_options.log.install()
    name_worker(log_options.worker)
    JobLogHandler().install(logging.getLogger(), logging.getLogger("jobs.run"))
    runner = HandlerRunner(job, ctx)
    threading.Thread(target=_receive_stops, args=(pipe, runner), daemon=True).start()
    outcome = runner.run()
    tracing.flush_spans()
    send("outcome", (outcome, ctx.tokens_used))
    pipe.close()


class HandlerRunner:
    """Runs the handler in this thread, sync or async, and stops it on request of another thread."""

    def __init__(self, job: ChildJob, ctx: Context) -> None:
        self.job, self.ctx = job, ctx
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Outcome] | None = None

    def run(self) -> Outcome:
        if registry.get(self.job.job_type).is_async:
            return asyncio.run(self._run_async())
        return run(self.job, self.ctx)

    def stop(self, mode: StopMode | None) -> None:
        self.ctx.request_stop(mode)
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _run_async(self) -> Outcome:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(run_async(self.job, self.ctx))
        return await self._task


def _receive_stops(pipe: Connection, runner: HandlerRunner) -> None:
    """Receive stop requests. When the worker is gone, kill the whole process group."""
    while True:
        try:
            runner.stop(pipe.recv())
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)
