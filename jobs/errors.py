"""The errors that services raise, and the exceptions that a handler may raise.

JobSchedulerError
├── InvalidInput               a field has a wrong value; names the fields         (422)
│   ├── UnknownJobType
│   ├── InvalidParams
│   └── NotDirect              the API may not call this job type directly
├── NotFound                                                                       (404)
├── Conflict                   valid input, but not in the present state           (409)
│   ├── WrongState             the action does not start from this state
│   │   ├── LiveTail           the latest attempt of the retry chain has not finished
│   │   └── Superseded         the retry chain has a later attempt
│   ├── InvalidOperationError  the change would break an invariant
│   ├── IdempotencyKeyReused   the same key with another body
│   ├── UniqueKeyTaken         a live job has the unique key
│   ├── LeaseLost              the executor's fencing token is out of date
│   ├── SlotBusy               a remote worker's slot runs another job
│   ├── NotAsked               a stop was reported that was not requested
│   ├── ReportWithComplete     the lease of a job ends by reporting the job's result
│   └── CallEnded              the lease of a direct call has ended before the call
├── NoSlot                     no slot became free for a direct call in time       (503)
├── HandlerFailed              the handler of a direct call raised                 (502)
├── HandlerTimedOut            the handler of a direct call ran too long           (504)
├── NotCompleted               raised by `wait`: the job ended otherwise, with no retry to follow
│   ├── JobFailed
│   ├── JobSkipped
│   └── JobEndedCancelled
├── WaitTimeout                raised by `wait`: the job has not ended in time; a TimeoutError
└── WaitInTransaction          `wait` was called within a transaction

raised by handlers
├── Skip                       nothing to do: finish SKIPPED
├── NoRetry                    finish FAILED without a retry
├── Retry                      finish FAILED; the retry starts after this delay
├── Snooze                     return to the queue for a while, in the same attempt
├── TokenLimitExceeded         raised by `ctx.use_tokens`
├── ResultsUnavailable         raised by `ctx.group.results()`
└── JobCancelled               raised by `ctx.check_cancelled`; a CancelledError: `except Exception` does not catch it
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from jobs.states import Refusal


class JobSchedulerError(Exception):
    code = "error"


class InvalidInput(JobSchedulerError, ValueError):
    """One or more fields are wrong. `errors` is a list of {loc, msg, type}."""

    code = "invalid_input"

    def __init__(self, field: str | Iterable[str | int], message: str, kind: str = "value_error") -> None:
        loc = [field] if isinstance(field, str) else list(field)
        self.errors: list[dict[str, Any]] = [{"loc": loc, "msg": message, "type": kind}]
        super().__init__(f"{'.'.join(map(str, loc))}: {message}" if loc else message)

    @classmethod
    def from_errors(cls, errors: list[dict[str, Any]]) -> InvalidInput:
        first = errors[0]
        invalid = cls(first["loc"], first["msg"], first["type"])
        invalid.errors = errors
        if len(errors) > 1:
            invalid.args = ("; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in errors),)
        return invalid

    def with_prefix(self, *prefix: str | int) -> InvalidInput:
        """Return the same errors with the location of their fields in an enclosing document."""
        return type(self).from_errors([{**error, "loc": [*prefix, *error["loc"]]} for error in self.errors])


class UnknownJobType(InvalidInput):
    code = "unknown_job_type"


class InvalidParams(InvalidInput):
    code = "invalid_params"


class NotDirect(InvalidInput):
    code = "not_direct"


class NotFound(JobSchedulerError, LookupError):
    code = "not_found"


class Conflict(JobSchedulerError):
    """`status` is the job's status, `allowed` lists the actions that it accepts; `refusal` is set for jobs only."""

    code = "conflict"

    def __init__(
        self, message: str, *, status: str = "", allowed: Iterable[str] = (), refusal: Refusal | None = None
    ) -> None:
        super().__init__(message)
        self.status = str(status)
        self.allowed = list(allowed)
        self.refusal = refusal
        self.field = "" if refusal is None else refusal.field
        self.tail_id = None if refusal is None else refusal.tail_id

    @staticmethod
    def from_refusal(refusal: Refusal) -> Conflict:
        """Return the error that a refused action raises."""
        kinds: list[type[Conflict]] = [LiveTail, Superseded, InvalidOperationError, UniqueKeyTaken]
        error_class = next((kind for kind in kinds if kind.code == refusal.code), WrongState)
        error = error_class(refusal.message, status=refusal.status, allowed=refusal.allowed, refusal=refusal)
        if isinstance(error, UniqueKeyTaken):
            error.holder_id = refusal.key_holder_id
        return error


class WrongState(Conflict):
    code = "wrong_state"


class LiveTail(WrongState):
    code = "live_tail"


class Superseded(WrongState):
    code = "superseded"


class InvalidOperationError(Conflict):
    code = "invalid_operation"


class IdempotencyKeyReused(Conflict):
    code = "idempotency_key_reused"


class UniqueKeyTaken(Conflict):
    """`holder_id` is the job that has the key, if it is known."""

    code = "unique_key_taken"
    holder_id: UUID | None = None


class LeaseLost(Conflict):
    code = "lease_lost"


class SlotBusy(Conflict):
    code = "slot_busy"


class NotAsked(Conflict):
    code = "not_asked"


class ReportWithComplete(Conflict):
    code = "report_with_complete"


class CallEnded(Conflict):
    code = "call_ended"


class NoSlot(JobSchedulerError):
    code = "no_slot"

    def __init__(self, message: str, *, retry_after_sec: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_sec = retry_after_sec


class HandlerFailed(JobSchedulerError):
    code = "handler_failed"


class HandlerTimedOut(JobSchedulerError):
    code = "handler_timed_out"


class NotCompleted(JobSchedulerError):
    """A job ended without completing. `job_id` is its latest attempt, `error` the traceback of that run, if any."""

    code = "not_completed"

    def __init__(self, job_id: UUID, job_type: str, status: str, attempt: int, reason: str, error: str) -> None:
        super().__init__(job_id, job_type, status, attempt, reason, error)
        self.job_id, self.job_type = job_id, job_type
        self.status, self.attempt, self.reason, self.error = str(status), attempt, reason, error

    def __str__(self) -> str:
        attempt = f" in attempt {self.attempt}" if self.attempt > 1 else ""
        ending = f": {self.reason}" if self.reason else "."
        return f"Job {self.job_id} ({self.job_type}) is {self.status}{attempt}{ending}"


class JobFailed(NotCompleted):
    """The latest attempt FAILED and is not retried."""

    code = "job_failed"


class JobSkipped(NotCompleted):
    """The job was SKIPPED: it had nothing to do, came too late, or followed a failed member of its group."""

    code = "job_skipped"


class JobEndedCancelled(NotCompleted):
    """The job was CANCELLED. `JobCancelled` is raised in handlers that must stop."""

    code = "job_ended_cancelled"


class WaitTimeout(JobSchedulerError, TimeoutError):
    """The job has not ended in time. `state` is its status, and its attempt if it was retried."""

    code = "wait_timeout"

    def __init__(self, job_id: UUID, timeout: float | None, state: str) -> None:
        super().__init__(job_id, timeout, state)
        self.job_id, self.timeout, self.state = job_id, timeout, state

    def __str__(self) -> str:
        return f"Job {self.job_id} has not ended within {self.timeout:g} s: it is {self.state}."


class WaitInTransaction(JobSchedulerError, RuntimeError):
    code = "wait_in_transaction"


class Skip(Exception):
    """Raised by a handler that finds nothing to do: the job finishes SKIPPED with this reason."""


class NoRetry(Exception):
    """Raised by a handler whose failure would repeat: the job finishes FAILED and is not retried."""


class Retry(Exception):
    """Raised by a handler that knows when to try again: `Retry(after=30)` or `Retry(at=…)`, `after` in seconds.

    The job finishes FAILED. The retry policy still decides whether there is a retry; this is its delay. `at` becomes a
    delay by the clock of the host that runs the handler: a handler that fails must not need the database.
    """

    after: float | None = None  # of a subclass that does not call `__init__`
    at: datetime | None = None

    def __init__(
        self, message: str = "", *, after: float | timedelta | None = None, at: datetime | None = None
    ) -> None:
        if (after is None) == (at is None):
            raise TypeError("Retry takes either after= (seconds or a timedelta) or at= (a datetime)")
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise TypeError(f"Retry: at must be a datetime with a time zone, not {at!r}")
        self.after = None if after is None else _to_seconds(after, "Retry: after")
        self.at = at
        when = f"after {self.after:g} s" if at is None else f"at {at.isoformat()}"
        super().__init__(message or f"to be retried {when}")

    def __reduce__(self) -> Any:
        return _restore_retry, (str(self), self.after, self.at)

    @property
    def delay_sec(self) -> float | None:
        """Return the seconds from now until the retry; None for a subclass that names no delay."""
        if self.at is None:
            return self.after
        return max((self.at - datetime.now(UTC)).total_seconds(), 0.0)


class Snooze(Exception):
    """Raised by a handler that has to wait: `Snooze(300)`. The job is QUEUED again and starts after these seconds.

    It is the same attempt, with the same run and the last checkpoint.
    """

    delay_sec: float | None = None  # of a subclass that does not call `__init__`: a failure as any other

    def __init__(self, after: float | timedelta, message: str = "") -> None:
        self.delay_sec = _to_seconds(after, "Snooze: the delay")
        super().__init__(message)

    def __reduce__(self) -> Any:
        return Snooze, (self.delay_sec, str(self))


def _restore_retry(message: str, after: float | None, at: datetime | None) -> Retry:
    return Retry(message, after=after, at=at)


def _to_seconds(value: object, name: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name} must be 0 seconds or more, not {value!r}")
    return float(seconds)


class ResultsUnavailable(NoRetry):
    """A handler asked for results of its group that it cannot have; the job finishes FAILED and is not retried."""


class TokenLimitExceeded(Exception):
    """The job has used more tokens than its limit; it finishes FAILED and is not retried."""


class JobCancelled(asyncio.CancelledError):
    """The job received a stop request (cancel, pause, shutdown or a lost lease)."""
