"""The result of a job: read it, or wait for it. Retries are followed to the chain's latest attempt.

`wait` and `await_result` return what the handler returned, and raise JobFailed, JobSkipped or JobEndedCancelled if it
did not complete. All calls of a process wait on one connection (`jobs.engine.waiters`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async

from jobs import db
from jobs.engine.waiters import Call, describe_state, read_latest_attempt, wait_for_end
from jobs.errors import (
    JobEndedCancelled,
    JobFailed,
    JobSkipped,
    NotCompleted,
    NotFound,
    WaitInTransaction,
    WaitTimeout,
)
from jobs.models import Job
from jobs.services.jobs import JobId
from jobs.states import Status
from jobs.validation import fields as validation

MAX_TIMEOUT_SEC = 366 * 86400.0
SHOW_SEC = 0.5
GRACE_SEC = 5.0  # the caller gives up so long after its timeout if the database does not answer
ERRORS: dict[str, type[NotCompleted]] = {
    Status.FAILED: JobFailed,
    Status.SKIPPED: JobSkipped,
    Status.CANCELLED: JobEndedCancelled,
}
Timeout = float | timedelta | None


@dataclass(frozen=True)
class Result:
    """The latest attempt of a job's retry chain with its run, as it was read."""

    job: Job

    @property
    def status(self) -> str:
        return self.job.status

    @property
    def is_finished(self) -> bool:
        """Whether the chain has ended: no automatic retry follows."""
        return self.job.is_terminal

    @property
    def value(self) -> Any:
        """The return value of the handler; None unless the job is COMPLETED."""
        run = getattr(self.job, "run", None)
        return run.artifacts.get("result") if run is not None and self.status == Status.COMPLETED else None

    @property
    def error(self) -> str:
        """The traceback of a failed run; empty if there is none."""
        run = getattr(self.job, "run", None)
        return "" if run is None else run.error

    @property
    def reason(self) -> str:
        return self.job.status_reason


def result(job_id: JobId) -> Result:
    """Return the job as it is now, or raise NotFound. It does not wait."""
    parsed_id = validation.parse_id(job_id)
    job = read_latest_attempt(parsed_id)
    if job is None:
        raise NotFound(f"There is no job {parsed_id}.")
    return Result(job)


def wait(job_id: JobId, timeout: Timeout = 30.0) -> Any:
    """Wait until the job's retry chain has ended; return what its handler returned.

    `timeout` is in seconds or a timedelta; None waits without a limit. Raise JobFailed, JobSkipped or
    JobEndedCancelled if the job did not complete, WaitTimeout (a TimeoutError) with its state if it has not ended in
    time, NotFound if there is none, and WaitInTransaction within a transaction: a job that it enqueued cannot start.
    """
    seconds = _parse_timeout(timeout)
    call = _start(job_id, seconds)
    try:
        job = call.future.result(None if seconds is None else seconds + GRACE_SEC)
    except TimeoutError:
        if call.future.done():
            raise
        raise WaitTimeout(call.job_id, seconds, call.state) from None
    finally:
        call.future.cancel()  # that of a caller which has given up or was interrupted
    return _get_value(job)


def follow(job_id: JobId, show: Callable[[], object]) -> Result:
    """Wait as `wait` does, without a limit, and call `show` at once and every SHOW_SEC. Return the result."""
    call = _start(job_id, None)
    try:
        show()
        while not futures.wait([call.future], SHOW_SEC).done:
            show()
        return Result(call.future.result())
    finally:
        call.future.cancel()


async def aresult(job_id: JobId) -> Result:
    """Return the job as it is now, as `result` does."""
    return await sync_to_async(result)(job_id)


async def await_result(job_id: JobId, timeout: Timeout = 30.0) -> Any:
    """Wait as `wait` does, without a thread: the event loop goes on."""
    seconds = _parse_timeout(timeout)
    call = await sync_to_async(_prepare)(job_id, seconds)
    wait_for_end(call)  # after the last await: a coroutine that is cancelled there leaves no call behind
    ended = asyncio.wrap_future(call.future)
    try:
        done, _pending = await asyncio.wait([ended], timeout=None if seconds is None else seconds + GRACE_SEC)
        if not done:
            raise WaitTimeout(call.job_id, seconds, call.state)
        job = await ended
    finally:
        call.future.cancel()
    return _get_value(job)


def _start(job_id: JobId, seconds: float | None) -> Call:
    """Return a call whose future gets the latest attempt of the job once it has ended."""
    call = _prepare(job_id, seconds)
    wait_for_end(call)
    return call


def _prepare(job_id: JobId, seconds: float | None) -> Call:
    """Return a call for `wait_for_end`, or raise what forbids to wait."""
    parsed_id = validation.parse_id(job_id)
    if db.is_in_transaction():
        raise WaitInTransaction(
            f"Job {parsed_id} cannot be waited for within a transaction: what it enqueued starts after its commit, and "
            "it keeps its locks meanwhile. Wait after the atomic block; ATOMIC_REQUESTS makes one of a whole view."
        )
    if db.connection().in_atomic_block:
        return _read_in_test(parsed_id, seconds)
    return Call(parsed_id, seconds)


def _read_in_test(job_id: UUID, seconds: float | None) -> Call:
    """Return a call that is done: within the transaction of a Django TestCase, no other connection sees its jobs."""
    call, job = Call(job_id, seconds), result(job_id).job
    if job.is_terminal:
        call.future.set_result(job)
    else:
        state = f"{describe_state(job.status, job.attempt)}; within the transaction of a test, run it before: drain()"
        call.future.set_exception(WaitTimeout(job_id, seconds, state))
    return call


def _get_value(job: Job) -> Any:
    ended = Result(job)
    if ended.status == Status.COMPLETED:
        return ended.value
    raise ERRORS[ended.status](job.pk, job.job_type, ended.status, job.attempt, ended.reason, ended.error)


def _parse_timeout(timeout: Any) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return float(validation.parse_number(seconds, "timeout", minimum=0, maximum=MAX_TIMEOUT_SEC))
