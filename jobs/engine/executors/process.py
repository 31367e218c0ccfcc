"""The process executor: each job in a process of its own session, which can be ended by force with all it started."""

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
from jobs.engine.executors.thread import Done, retry_facts
from jobs.outcomes import Failed, Outcome, Stopped
from jobs.states import Cause
from jobs.validation.sanitize import sanitize_text

if TYPE_CHECKING:
    from jobs.engine.worker.running_jobs import RunningJob

CTX_FIELDS = (
    *("job_id", "params", "attempt", "fence", "resume_from", "artifacts"),
    *("token_limit", "tokens_used", "resource", "traceparent"),
)
LAST_WORDS_SEC = 2.0  # between asking a process group to end and ending it


class ProcessExecutor:
    def __init__(self, done: Done) -> None:
        self.done = done
        self._running: set[BaseProcess] = set()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["jobs.engine.executors.forkserver_preload", "jobs.engine.executors.process_child"]
        )

    def start(self, job: RunningJob) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=process_child.main,
            args=(theirs, job.claim.job_type, {name: getattr(job.ctx, name) for name in CTX_FIELDS}, retry_facts(job)),
            daemon=False,
        )
        thread = threading.Thread(target=self._attend, args=(job, process, ours, theirs), daemon=True)
        thread.start()

    def add_threads_if_stalled(self) -> bool:
        """Every job has its process; nothing waits for one."""
        return False

    def end(self) -> None:
        """What still runs now has no worker any more: it must not go on beside its successor."""
        for process in self._running.copy():
            _kill_group(process, signal.SIGKILL)

    def _attend(self, job: RunningJob, process: BaseProcess, ours: Connection, theirs: Connection) -> None:
        try:
            process.start()
        except Exception as error:  # noqa: BLE001 — a process that cannot be made is a failed attempt, not the worker's end
            self.done(job, _failed(job, f"the handler's process could not be started: {error}", 1))
            return
        finally:
            theirs.close()
        self._running.add(process)
        is_wanted = job.try_start()
        outcome = self._see_through(job, process, ours) if is_wanted else None
        _kill_group(process, signal.SIGKILL)  # whatever the handler left running
        process.join()
        self._running.discard(process)
        ours.close()
        if is_wanted:
            self.done(job, outcome or _silent_end(job, process.exitcode))

    def _see_through(self, job: RunningJob, process: BaseProcess, ours: Connection) -> Outcome | None:
        _send(ours, process_child.GO)
        job.kill = lambda: _kill(process)
        job.interrupt = lambda: _send(ours, job.ctx.stop_mode)
        if job.ctx.cancelled:
            job.interrupt()
        if job.lost:
            _kill(process)
        outcome: Outcome | None = None
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, content = ours.recv()
                if kind == "outcome":
                    outcome, job.ctx.tokens_used = content
                else:
                    job.ctx.relay(content)
        process.join()
        return outcome


def _silent_end(job: RunningJob, code: int | None) -> Outcome:
    """The process ended without a word: killed by us for a stop, or crashed."""
    if job.stop_requested_at is not None and not job.timed_out:
        return Stopped()
    if code is not None and code < 0:
        return _failed(job, f"the handler's process was ended by {_signal_name(-code)}", 128 - code)
    return _failed(job, f"the handler's process ended with exit code {code}", code or 1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time ones have none
        return f"signal {number}"


def _failed(job: RunningJob, error: str, exit_code: int) -> Failed:
    delay = decide_retry(job.claim.job_type, **retry_facts(job), cause=Cause.ERROR, error=None)
    error = sanitize_text(error, 500)
    return Failed(error=error, reason=error, exit_code=exit_code, retry_in=delay)


def _kill(process: BaseProcess) -> None:
    _kill_group(process, signal.SIGTERM)
    timer = threading.Timer(LAST_WORDS_SEC, _kill_group, (process, signal.SIGKILL))
    timer.daemon = True
    timer.start()


def _kill_group(process: BaseProcess, number: int) -> None:
    if process.pid is None:
        return
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:  # it has not become a group yet, or is gone
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _send(pipe: Connection, message: Any) -> None:
    with contextlib.suppress(OSError):
        pipe.send(message)
