"""Direct calls: run a handler in this process, in the next free slot, without a job.

    jobs.direct.run("story.generate", {"topic": "sea"}, wait=30)

    with jobs.direct.slot("story.generate", wait=60):
        ...  # work under the limits of that type

Slots go to running jobs first, then to direct calls in their order, then to the queue.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError
from django.utils.translation import gettext as _

from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.conf.rules import YEAR_SEC
from jobs.engine.executors.run import Context, current_context
from jobs.engine.slots import leases, reservations
from jobs.engine.slots.heartbeat import lease_heartbeat
from jobs.engine.slots.reservations import SlotWaiter
from jobs.errors import HandlerFailed, InvalidInput, NoSlot, Skip, TokenLimitExceeded
from jobs.policies.admission import Candidate
from jobs.registry import Handler, registry
from jobs.services.job_spec import NORMAL_PRIORITY
from jobs.validation import fields
from jobs.validation.sanitize import sanitize_text

logger = logging.getLogger("jobs.direct")
OUTCOME_LENGTH = 2000


@dataclass
class DirectSlot:
    """A slot that the caller holds until its block ends. `lost`: the lease has expired; stop the work."""

    lease_id: UUID
    waited_ms: int = 0
    outcome: str = ""  # the result, if it is not the raised exception
    lost: bool = False
    ctx: Context | None = None

    def mark_lost(self) -> None:
        self.lost = True
        if self.ctx is not None:
            self.ctx.request_stop(None)


@dataclass(frozen=True)
class DirectResult:
    """The result of a direct call; `skipped` is the reason of a Skip."""

    result: Any
    skipped: str | None
    waited_ms: int
    ran_ms: int


def run(
    job_type: str, params: Any = None, *, wait: float | None = None, tenant: str = "default", actor: Actor = PYTHON
) -> Any:
    """Run the handler in the next free slot. Return its result; its exceptions are raised here.

    Raise NoSlot if no slot becomes free within `wait` seconds (default: DIRECT_WAIT_SEC).
    """
    handler, arguments = _parse_call(job_type, params)
    with slot(job_type, wait=wait, tenant=tenant, actor=actor) as held_slot:
        return _call(handler, arguments, held_slot)


def execute(
    job_type: str, params: Any = None, *, wait: float | None = None, tenant: str = "default", actor: Actor = PYTHON
) -> DirectResult:
    """Run the handler as `run` does. Return a skip as a result, and raise HandlerFailed for any exception."""
    handler, arguments = _parse_call(job_type, params)
    result, skipped = None, None
    with slot(job_type, wait=wait, tenant=tenant, actor=actor) as held_slot:
        began = time.monotonic()
        try:
            result = _call(handler, arguments, held_slot)
        except Skip as skip:
            held_slot.outcome = _describe_outcome(skip)
            skipped = sanitize_text(str(skip), OUTCOME_LENGTH)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.warning("direct call of %s failed", handler.name, exc_info=error)
            held_slot.outcome = _describe_outcome(error)
            raise HandlerFailed(_describe_error(error)) from error
        ran_ms = round((time.monotonic() - began) * 1000)
    return DirectResult(result, skipped, held_slot.waited_ms, ran_ms)


@contextmanager
def slot(
    job_type: str, *, wait: float | None = None, tenant: str = "default", actor: Actor = PYTHON
) -> Iterator[DirectSlot]:
    """Hold a slot under the limits of this type while the block runs.

    Call it outside of a transaction: other processes must see the reservation.
    """
    handler = registry.get(fields.parse_identifier(job_type, "job_type"))
    options = handler.options
    candidate = Candidate(
        tenant=fields.parse_tenant(tenant),
        job_type=handler.name,
        resource=options.resource,
        cost_units=1 if options.cost_units is None else options.cost_units,
        priority=NORMAL_PRIORITY if options.priority is None else options.priority,
        constraints=frozenset(name for name, is_set in (options.constraints or {}).items() if is_set),
    )
    wait_sec = conf.DIRECT_WAIT_SEC if wait is None else fields.parse_number(wait, "wait", minimum=0, maximum=YEAR_SEC)
    held_slot = _acquire(candidate, actor, wait_sec)
    try:
        yield held_slot
    except BaseException as error:
        held_slot.outcome = held_slot.outcome or _describe_outcome(error)
        raise
    finally:
        _release_slot(held_slot.lease_id, held_slot.outcome or "completed")


def _acquire(candidate: Candidate, actor: Actor, wait_sec: float) -> DirectSlot:
    """Return a granted slot, or raise NoSlot and delete the reservation."""
    began = time.monotonic()
    lease = reservations.reserve_slot(candidate, actor.name or str(actor.kind))
    held_slot = DirectSlot(lease.pk)
    lease_heartbeat.add(lease.pk, held_slot.mark_lost)
    try:
        if lease.granted_at is None:
            with SlotWaiter() as waiter:
                while (reason := reservations.try_grant(lease)) is not None:
                    if reason.is_permanent:
                        raise NoSlot(reason.message)
                    left = began + wait_sec - time.monotonic()
                    if left <= 0:
                        values = {"sec": wait_sec, "why": reason.message}
                        raise NoSlot(_("No slot became free within %(sec)g s: %(why)s") % values)
                    waiter.wait(left)
    except BaseException as error:
        _release_slot(lease.pk, _describe_outcome(error))
        raise
    held_slot.waited_ms = round((time.monotonic() - began) * 1000)
    return held_slot


def _release_slot(lease_id: UUID, outcome: str) -> None:
    """Release the slot. If the database cannot be reached, the lease expires."""
    lease_heartbeat.remove(lease_id)
    try:
        leases.end_lease(lease_id, outcome)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("direct call %s: the result was not recorded, its lease expires: %s", lease_id, error)


def _parse_call(job_type: str, params: Any) -> tuple[Handler[..., Any], dict[str, Any]]:
    handler = registry.get(fields.parse_identifier(job_type, "job_type"))
    if handler.options.remote:
        raise InvalidInput("job_type", _("runs on remote workers only"), "remote_job_type")
    arguments = fields.parse_json_object({} if params is None else params, "params")
    handler.signature.validate(arguments)
    return handler, arguments


def _call(handler: Handler[..., Any], params: dict[str, Any], held_slot: DirectSlot) -> Any:
    limit = conf.TOKEN_LIMIT if handler.options.token_limit is None else handler.options.token_limit
    held_slot.ctx = ctx = Context(job_id=None, params=params, token_limit=limit)
    if held_slot.lost:
        ctx.request_stop(None)
    call = partial(handler, *((ctx,) if handler.takes_ctx else ()), **handler.signature.parse_arguments(params))
    # After max_runtime_sec the handler gets a stop request. In the caller's thread it cannot be forced to stop.
    timer = threading.Timer(handler.options.max_runtime_sec or 0, ctx.request_stop, [None])
    timer.daemon = True
    if handler.options.max_runtime_sec is not None:
        timer.start()
    token = current_context.set(ctx)
    try:
        result = asyncio.run(call()) if handler.is_async else call()
    finally:
        timer.cancel()
        current_context.reset(token)
    if ctx.is_over_token_limit:
        raise TokenLimitExceeded(f"{ctx.tokens_used} tokens used, {ctx.token_limit} allowed")
    return result


def _describe_outcome(error: BaseException) -> str:
    if isinstance(error, Skip):
        return sanitize_text(f"skipped: {error}", OUTCOME_LENGTH)
    if isinstance(error, NoSlot):
        return "gave up waiting"
    return sanitize_text(f"failed: {_describe_error(error)}", OUTCOME_LENGTH)


def _describe_error(error: BaseException) -> str:
    lines = sanitize_text(str(error), 500).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
