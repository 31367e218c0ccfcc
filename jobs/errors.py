"""Everything that can be refused, and what a handler may raise.

JobSchedulerError
├── InvalidInput               what was asked makes no sense; names the fields    (422)
│   ├── UnknownJobType
│   └── InvalidParams
├── NotFound                                                                      (404)
├── Conflict                   sensible, but not now                              (409)
│   ├── WrongState             the action does not start from this state
│   │   ├── LiveTail           the chain already has a live job at its end
│   │   └── Superseded         a later attempt of the chain took the job's place
│   ├── InvalidOperationError  it would break an invariant
│   ├── IdempotencyKeyReused   same key, another body
│   ├── LeaseLost              the executor's token no longer holds the job
│   ├── SlotBusy               a remote worker's slot has another job
│   ├── NotAsked               a stop was reported that nobody asked for
│   └── ReportWithComplete     a job's lease ends with its job, not by itself
├── NoSlot                     no slot came free for a direct call in time        (503)
└── HandlerFailed              a handler that was called directly raised          (502)

raised by handlers
├── Skip                       nothing to do: end SKIPPED
├── NoRetry                    end FAILED for good
├── TokenLimitExceeded         raised by `ctx.use_tokens`
└── JobCancelled               raised by `ctx.check_cancelled`; a CancelledError, so `except Exception` lets it pass
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
    def of(cls, errors: list[dict[str, Any]]) -> InvalidInput:
        first = errors[0]
        error = cls(first["loc"], first["msg"], first["type"])
        error.errors = errors
        if len(errors) > 1:
            error.args = ("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in errors),)
        return error

    def under(self, *prefix: str | int) -> InvalidInput:
        """The same errors, seen from an enclosing document."""
        return type(self).of([{**e, "loc": [*prefix, *e["loc"]]} for e in self.errors])


class UnknownJobType(InvalidInput):
    code = "unknown_job_type"


class InvalidParams(InvalidInput):
    code = "invalid_params"


class NotFound(JobSchedulerError, LookupError):
    code = "not_found"


class Conflict(JobSchedulerError):
    """`status` and `allowed` tell what the job is and which actions it accepts; `refusal` is there for jobs only."""

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
    def of(refusal: Refusal) -> Conflict:
        """Make the error that a refused action raises."""
        kinds: list[type[Conflict]] = [LiveTail, Superseded, InvalidOperationError]
        kind = next((each for each in kinds if each.code == refusal.code), WrongState)
        return kind(refusal.message, status=refusal.status, allowed=refusal.allowed, refusal=refusal)


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


class NoSlot(JobSchedulerError):
    code = "no_slot"

    def __init__(self, message: str, *, retry_after_sec: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_sec = retry_after_sec


class HandlerFailed(JobSchedulerError):
    code = "handler_failed"


class Skip(Exception):
    """Raised by a handler that finds nothing to do: the job ends SKIPPED with this reason."""


class NoRetry(Exception):
    """Raised by a handler whose failure would only repeat: the job ends FAILED and is not retried."""


class TokenLimitExceeded(Exception):
    """The job has used more tokens than it was given; it ends FAILED and is not retried."""


class JobCancelled(asyncio.CancelledError):
    """The job was asked to stop (cancel, pause, shutdown or a lost lease)."""
