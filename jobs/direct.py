"""Direct execution: run a handler here and now, in the next free slot, without a job.

    jobs.direct.run("story.generate", {"topic": "sea"}, wait=30)

    with jobs.direct.slot("story.generate", wait=60):
        ...  # whatever falls under the limits of that type

Order is always: what runs, direct calls as they came, then the queue.
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
    """A slot that is ours until its block ends. `lost`: it no longer is; stop what needs it."""

    lease_id: UUID
    waited_ms: int = 0
    outcome: str = ""  # how it ended, where that is known better than by what was raised
    lost: bool = False
    ctx: Context | None = None

    def lose(self) -> None:
        self.lost = True
        if self.ctx is not None:
            self.ctx.request_stop(None)


@dataclass(frozen=True)
class DirectResult:
    """What a direct call came to; `skipped` is why there was nothing to do."""

    result: Any
    skipped: str | None
    waited_ms: int
    ran_ms: int


def run(
    job_type: str, params: Any = None, *, wait: float | None = None, tenant: str = "default", actor: Actor = PYTHON
) -> Any:
    """Run the handler in the next slot and return what it returned. What it raises, it raises here.

    NoSlot, if none comes free within `wait` seconds (default: DIRECT_WAIT_SEC).
    """
    handler, given = _parse_call(job_type, params)
    with slot(job_type, wait=wait, tenant=tenant, actor=actor) as mine:
        return _call(handler, given, mine)


def execute(
    job_type: str, params: Any = None, *, wait: float | None = None, tenant: str = "default", actor: Actor = PYTHON
) -> DirectResult:
    """As `run`, told as a document: a skip is an answer, and whatever the handler raises is a HandlerFailed."""
    handler, given = _parse_call(job_type, params)
    result, skipped = None, None
    with slot(job_type, wait=wait, tenant=tenant, actor=actor) as mine:
        began = time.monotonic()
        try:
            result = _call(handler, given, mine)
        except Skip as skip:
            mine.outcome = _describe_outcome(skip)
            skipped = sanitize_text(str(skip), OUTCOME_LENGTH)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.warning("the direct call of %s failed", handler.name, exc_info=error)
            mine.outcome = _describe_outcome(error)
            raise HandlerFailed(_describe_error(error)) from error
        ran_ms = round((time.monotonic() - began) * 1000)
    return DirectResult(result, skipped, mine.waited_ms, ran_ms)


@contextmanager
def slot(
    job_type: str, *, wait: float | None = None, tenant: str = "default", actor: Actor = PYTHON
) -> Iterator[DirectSlot]:
    """Hold a slot under the limits that this type falls under, for as long as the block runs.

    Outside of any transaction of the caller's: others must see the reservation.
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
    patience = conf.DIRECT_WAIT_SEC if wait is None else fields.parse_number(wait, "wait", minimum=0, maximum=YEAR_SEC)
    mine = _acquire(candidate, actor, patience)
    try:
        yield mine
    except BaseException as error:
        mine.outcome = mine.outcome or _describe_outcome(error)
        raise
    finally:
        _release_slot(mine.lease_id, mine.outcome or "completed")


def _acquire(candidate: Candidate, actor: Actor, patience: float) -> DirectSlot:
    """A granted slot; or NoSlot, and nothing is left behind."""
    began = time.monotonic()
    lease = reservations.reserve_slot(candidate, actor.name or str(actor.kind))
    mine = DirectSlot(lease.pk)
    lease_heartbeat.add(lease.pk, mine.lose)
    try:
        if lease.granted_at is None:
            with SlotWaiter() as waiter:
                while (reason := reservations.try_grant(lease)) is not None:
                    if reason.is_permanent:
                        raise NoSlot(reason.message)
                    left = began + patience - time.monotonic()
                    if left <= 0:
                        raise NoSlot(
                            _("No slot came free within %(sec)g s: %(why)s") % {"sec": patience, "why": reason.message}
                        )
                    waiter.wait(left)
    except BaseException as error:
        _release_slot(lease.pk, _describe_outcome(error))
        raise
    mine.waited_ms = round((time.monotonic() - began) * 1000)
    return mine


def _release_slot(lease_id: UUID, outcome: str) -> None:
    """Free the slot. If the database cannot be told, the lease runs out by itself."""
    lease_heartbeat.remove(lease_id)
    try:
        leases.end_lease(lease_id, outcome)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("the end of the direct call %s was not recorded, its lease runs out: %s", lease_id, error)


def _parse_call(job_type: str, params: Any) -> tuple[Handler[..., Any], dict[str, Any]]:
    handler = registry.get(fields.parse_identifier(job_type, "job_type"))
    if handler.options.remote:
        raise InvalidInput("job_type", _("runs on remote workers only"), "remote_job_type")
    given = fields.parse_json_object({} if params is None else params, "params")
    handler.signature.validate(given)
    return handler, given


def _call(handler: Handler[..., Any], params: dict[str, Any], mine: DirectSlot) -> Any:
    limit = conf.TOKEN_LIMIT if handler.options.token_limit is None else handler.options.token_limit
    mine.ctx = ctx = Context(job_id=None, params=params, token_limit=limit)
    if mine.lost:
        ctx.request_stop(None)
    call = partial(handler, *((ctx,) if handler.takes_ctx else ()), **handler.signature.parse_arguments(params))
    # Past its time the handler is asked to stop. In the caller's own thread it cannot be made to.
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
