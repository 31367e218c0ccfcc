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
│   ├── LeaseLost              the executor's fencing token is out of date
│   ├── SlotBusy               a remote worker's slot runs another job
│   ├── NotAsked               a stop was reported that was not requested
│   ├── ReportWithComplete     the lease of a job ends by reporting the job's result
│   └── CallEnded              the lease of a direct call has ended before the call
├── NoSlot                     no slot became free for a direct call in time       (503)
├── HandlerFailed              the handler of a direct call raised                 (502)
└── HandlerTimedOut            the handler of a direct call ran too long           (504)

raised by handlers
├── Skip                       nothing to do: finish SKIPPED
├── NoRetry                    finish FAILED without a retry
├── TokenLimitExceeded         raised by `ctx.use_tokens`
└── JobCancelled               raised by `ctx.check_cancelled`; a CancelledError: `except Exception` does not catch it
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

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
        kinds: list[type[Conflict]] = [LiveTail, Superseded, InvalidOperationError]
        error_class = next((kind for kind in kinds if kind.code == refusal.code), WrongState)
        return error_class(refusal.message, status=refusal.status, allowed=refusal.allowed, refusal=refusal)


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


class Skip(Exception):
    """Raised by a handler that finds nothing to do: the job finishes SKIPPED with this reason."""


class NoRetry(Exception):
    """Raised by a handler whose failure would repeat: the job finishes FAILED and is not retried."""


class TokenLimitExceeded(Exception):
    """The job has used more tokens than its limit; it finishes FAILED and is not retried."""


class JobCancelled(asyncio.CancelledError):
    """The job received a stop request (cancel, pause, shutdown or a lost lease)."""
