"""The process executor: each job runs in a process of its own session, which can be killed with its children."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from jobs.engine.executors import process_child
from jobs.engine.executors.run import decide_retry
from jobs.engine.executors.thread import OnReturn
from jobs.log_formats import WorkerLog
from jobs.outcomes import Failed, Outcome, Stopped
from jobs.states import Cause
from jobs.validation.sanitize import sanitize_text

if TYPE_CHECKING:
    from jobs.engine.worker.running_jobs import RunningJob

CTX_FIELDS = (
    *("job_id", "job_type", "params", "attempt", "fence", "resume_from", "artifacts"),
    *("token_limit", "tokens_used", "resource", "group_id", "context", "traceparent"),
)
KILL_GRACE_SEC = 2.0  # between SIGTERM and SIGKILL for a process group


class ProcessExecutor:
    """Starts a process for each job, and a thread that supervises it."""

    def __init__(self, on_return: OnReturn, worker: str, log: WorkerLog | None) -> None:
        self.on_return = on_return
        self._log_options = process_child.LogOptions(worker, log)
        self._running: set[BaseProcess] = set()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["jobs.engine.executors.forkserver_preload", "jobs.engine.executors.process_child"]
        )

    def start(self, job: RunningJob) -> None:
        pipe, child_pipe = self._context.Pipe()
        ctx_fields = {name: getattr(job.ctx, name) for name in CTX_FIELDS}
        process = self._context.Process(
            target=process_child.main,
            args=(child_pipe, process_child.ChildJob.from_attempt(job.claim), ctx_fields, self._log_options),
            daemon=False,
        )
        thread = threading.Thread(target=self._supervise, args=(job, process, pipe, child_pipe), daemon=True)
        thread.start()

    def add_threads_if_stalled(self) -> bool:
        """Return False: every job has its own process, none waits."""
        return False

    def end(self) -> None:
        """Kill the handlers that still run: without a worker they must not go on beside their successors."""
        for process in self._running.copy():
            _kill_group(process, signal.SIGKILL)

    def _supervise(self, job: RunningJob, process: BaseProcess, pipe: Connection, child_pipe: Connection) -> None:
        try:
            process.start()
        except Exception as error:  # noqa: BLE001 — a failed attempt, not the end of the worker
            self.on_return(job, _build_failure(job, f"the handler's process could not be started: {error}", 1))
            return
        finally:
            child_pipe.close()
        self._running.add(process)
        should_run = job.try_start()
        outcome = self._run_handler(job, process, pipe) if should_run else None
        _kill_group(process, signal.SIGKILL)  # children that the handler left running
        process.join()
        self._running.discard(process)
        pipe.close()
        if should_run:
            self.on_return(job, outcome or _explain_exit(job, process.exitcode))

    def _run_handler(self, job: RunningJob, process: BaseProcess, pipe: Connection) -> Outcome | None:
        """Let the process call the handler, and relay messages until it ends. Return its outcome, if it sent one."""
        _send(pipe, process_child.CALL_HANDLER)
        job.kill = lambda: _kill(process)
        job.interrupt = lambda: _send(pipe, job.ctx.stop_mode)
        if job.ctx.cancelled:
            job.interrupt()
        if job.lost:
            _kill(process)
        outcome: Outcome | None = None
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, content = pipe.recv()
                if kind == "outcome":
                    outcome, job.ctx.tokens_used = content
                else:
                    job.ctx.merge_writes(content)
        process.join()
        return outcome


def _explain_exit(job: RunningJob, code: int | None) -> Outcome:
    """Return the outcome of a process that ended without sending one: killed by us for a stop, or crashed."""
    if job.stop_requested_at is not None and not job.timed_out:
        return Stopped()
    if code is not None and code < 0:
        return _build_failure(job, f"the handler's process was ended by {_signal_name(-code)}", 128 - code)
    return _build_failure(job, f"the handler's process ended with exit code {code}", code or 1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _build_failure(job: RunningJob, error: str, exit_code: int) -> Failed:
    delay = decide_retry(job.claim, cause=Cause.ERROR, error=None)
    error = sanitize_text(error, 500)
    return Failed(error=error, reason=error, exit_code=exit_code, retry_in=delay)


def _kill(process: BaseProcess) -> None:
    """End the process group: SIGTERM now, SIGKILL after KILL_GRACE_SEC."""
    _kill_group(process, signal.SIGTERM)
    timer = threading.Timer(KILL_GRACE_SEC, _kill_group, (process, signal.SIGKILL))
    timer.daemon = True
    timer.start()


def _kill_group(process: BaseProcess, number: int) -> None:
    if process.pid is None:
        return
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:  # the process is not a group leader yet, or is gone
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _send(pipe: Connection, message: Any) -> None:
    with contextlib.suppress(OSError):
        pipe.send(message)
