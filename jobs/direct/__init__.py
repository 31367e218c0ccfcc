"""Direct calls: run a handler in this process, in the next free slot, without a job.

    jobs.direct.run("story.generate", {"topic": "sea"}, wait=30)

    with jobs.direct.slot("story.generate", wait=60):
        ...  # work under the limits of that type

Slots go to running jobs first, then to direct calls in their order, then to the queue. Both forms run in the caller's
own thread, for as long as it takes; calls through the API are bounded (`jobs.direct.bounded`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError
from django.utils.translation import gettext as _

from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.conf.rules import YEAR_SEC
from jobs.engine.executors.run import Context, current_context, format_reason, wrap_call
from jobs.engine.slots import leases, reservations
from jobs.engine.slots.heartbeat import lease_heartbeat
from jobs.engine.slots.reservations import SlotWaiter
from jobs.errors import InvalidInput, NoSlot, Skip, TokenLimitExceeded
from jobs.job_context import capture_context
from jobs.policies.admission import Candidate
from jobs.registry import Handler, registry
from jobs.services.job_spec import NORMAL_PRIORITY
from jobs.validation import fields
from jobs.validation.sanitize import sanitize_text

logger = logging.getLogger("jobs.direct")
OUTCOME_LENGTH = 2000


@dataclass
class DirectSlot:
    """A slot that the caller holds until its block ends. `lost`: the lease has ended before; stop the work."""

    lease_id: UUID
    waited_ms: int = 0
    outcome: str = ""  # the result, if it is not the raised exception
    lost: bool = False
    ctx: Context | None = None
    interrupt: Callable[[], None] | None = None  # cancels an async handler
    changed: threading.Event = field(default_factory=threading.Event, repr=False)  # lost, or the handler has returned

    def request_stop(self) -> None:
        """Ask the handler to stop."""
        if self.ctx is not None:
            self.ctx.request_stop(None)
        if self.interrupt is not None:
            self.interrupt()

    def clean(self, text: object, max_length: int) -> str:
        """Return a text of the handler as it may be stored: the secrets of its params are masked."""
        return sanitize_text(text, max_length) if self.ctx is None else self.ctx.clean_text(text, max_length)

    def describe(self, error: BaseException) -> str:
        """Return the outcome of a call that ended with this exception."""
        if isinstance(error, Skip):
            return f"skipped: {self.clean(error, OUTCOME_LENGTH)}"
        if isinstance(error, NoSlot):
            return "gave up waiting"
        return f"failed: {format_reason(error, self.clean)}"

    def mark_lost(self) -> None:
        self.lost = True
        self.request_stop()
        self.changed.set()


def run(
    job_type: str, params: Any = None, *, wait: float | None = None, tenant: str = "default", actor: Actor = PYTHON
) -> Any:
    """Run the handler in the next free slot. Return its result; its exceptions are raised here.

    Raise NoSlot if no slot becomes free within `wait` seconds (default: DIRECT_WAIT_SEC), and CallEnded if an operator
    ends the call while it waits.
    """
    handler, arguments = parse_call(job_type, params)
    with slot(job_type, wait=wait, tenant=tenant, actor=actor) as held_slot:
        ctx = build_context(handler, arguments)
        # After max_runtime_sec the handler gets a stop request. In the caller's thread it cannot be forced to stop.
        timer = threading.Timer(handler.options.max_runtime_sec or 0, held_slot.request_stop)
        timer.daemon = True
        if handler.options.max_runtime_sec is not None:
            timer.start()
        try:
            return call_handler(handler, ctx, held_slot)
        finally:
            timer.cancel()


@contextmanager
def slot(
    job_type: str,
    *,
    wait: float | None = None,
    tenant: str = "default",
    actor: Actor = PYTHON,
    api_token: UUID | None = None,
) -> Iterator[DirectSlot]:
    """Hold a slot under the limits of this type while the block runs.

    Call it outside of a transaction: other processes must see the reservation. DIRECT_PER_TOKEN counts the slots of an
    `api_token`.
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
    held_slot = _acquire(candidate, actor, wait_sec, api_token, get_token_limit(handler))
    try:
        yield held_slot
    except BaseException as error:
        held_slot.outcome = held_slot.outcome or held_slot.describe(error)
        raise
    finally:
        tokens_used = 0 if held_slot.ctx is None else held_slot.ctx.tokens_used
        if not _release_slot(held_slot.lease_id, held_slot.outcome or "completed", tokens_used):
            held_slot.lost = True


def _acquire(
    candidate: Candidate, actor: Actor, wait_sec: float, api_token: UUID | None, token_limit: int | None
) -> DirectSlot:
    """Return a granted slot, or raise NoSlot or CallEnded and end the reservation."""
    began = time.monotonic()
    lease = reservations.reserve_slot(candidate, str(actor), api_token, token_limit=token_limit)
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
                    waiter.wait(left if reason.seconds is None else min(left, reason.seconds))
    except BaseException as error:
        _release_slot(lease.pk, held_slot.describe(error))
        raise
    held_slot.waited_ms = round((time.monotonic() - began) * 1000)
    return held_slot


def _release_slot(lease_id: UUID, outcome: str, tokens_used: int = 0) -> bool:
    """Release the slot. Return whether it was still held. If the database cannot be reached, the lease expires."""
    lease_heartbeat.remove(lease_id)
    try:
        return leases.end_lease(lease_id, outcome, tokens_used=tokens_used)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("direct call %s: the result was not recorded, its lease expires: %s", lease_id, error)
        return True


def parse_call(job_type: str, params: Any) -> tuple[Handler[..., Any], dict[str, Any]]:
    """Return the handler of a local job type, and its params, which fit its signature."""
    handler = registry.get(fields.parse_identifier(job_type, "job_type"))
    if handler.options.remote:
        raise InvalidInput("job_type", _("runs on remote workers only"), "remote_job_type")
    arguments = fields.parse_json_object({} if params is None else params, "params")
    handler.signature.validate(arguments)
    return handler, arguments


def build_context(handler: Handler[..., Any], params: dict[str, Any]) -> Context:
    """Return the `ctx` of a handler that runs without a job."""
    limit, context = get_token_limit(handler), capture_context(handler)
    return Context(job_id=None, params=params, token_limit=limit, context=context)


def get_token_limit(handler: Handler[..., Any]) -> int | None:
    """Return how many tokens a call of this handler may use; None: any number."""
    return conf.TOKEN_LIMIT if handler.options.token_limit is None else handler.options.token_limit


def call_handler(handler: Handler[..., Any], ctx: Context, held_slot: DirectSlot) -> Any:
    """Call the handler in this thread; return its result. A stop request of the slot reaches it."""
    held_slot.ctx = ctx
    if held_slot.lost:
        ctx.request_stop(None)
    call = partial(handler, *((ctx,) if handler.takes_ctx else ()), **handler.signature.parse_arguments(ctx.params))
    token = current_context.set(ctx)
    try:
        with wrap_call(ctx):
            result = asyncio.run(_await_handler(call, ctx, held_slot)) if handler.is_async else call()
    finally:
        current_context.reset(token)
    if ctx.is_over_token_limit:
        raise TokenLimitExceeded(f"{ctx.tokens_used} tokens used, {ctx.token_limit} allowed")
    return result


async def _await_handler(call: Callable[[], Awaitable[Any]], ctx: Context, held_slot: DirectSlot) -> Any:
    """Await an async handler in a task that a stop request cancels."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(call())

    def interrupt() -> None:
        with suppress(RuntimeError):  # the loop is closed: the handler has returned meanwhile
            loop.call_soon_threadsafe(task.cancel)

    held_slot.interrupt = interrupt
    if ctx.cancelled:  # requested before there was a task
        task.cancel()
    return await task
