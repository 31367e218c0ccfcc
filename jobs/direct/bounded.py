"""Direct calls through the API: few at a time, and each answered in time.

A handler runs in a thread of its own. Past the time that a call may take, its caller gets an answer, its slot is free
and its handler is asked to stop. The thread is left alone: it counts against DIRECT_MAX until the handler returns, and
its result is dropped.
"""

from __future__ import annotations

import contextvars
import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connections
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.direct import (
    OUTCOME_LENGTH,
    DirectSlot,
    build_context,
    call_handler,
    parse_call,
    slot,
)
from jobs.engine.executors.run import format_reason, format_traceback
from jobs.engine.slots import leases
from jobs.errors import HandlerFailed, HandlerTimedOut, NoSlot, NotDirect, Skip
from jobs.registry import Handler
from jobs.states import LEASE_EXPIRED_REASON

logger = logging.getLogger("jobs.direct")


@dataclass(frozen=True)
class DirectResult:
    """The result of a direct call; `skipped` is the reason of a Skip."""

    result: Any
    skipped: str | None
    waited_ms: int
    ran_ms: int


def execute(
    job_type: str,
    params: Any = None,
    *,
    wait: float | None = None,
    tenant: str = "default",
    actor: Actor = PYTHON,
    api_token: UUID | None = None,
) -> DirectResult:
    """Run a handler that is registered with `direct=True` in the next free slot. A skip is a result.

    Raise NotDirect for other job types, NoSlot past DIRECT_MAX, DIRECT_PER_TOKEN or `wait`, HandlerFailed for any
    exception, HandlerTimedOut past DIRECT_MAX_RUNTIME_SEC or the handler's shorter `max_runtime_sec`, and CallEnded if
    the lease has ended before.
    """
    handler, arguments = parse_call(job_type, params)
    if not handler.options.direct:
        message = _("“%s” cannot be called directly: its handler is not registered with @job(direct=True).")
        raise NotDirect("job_type", message % handler.name, "not_direct")
    thread = HandlerThread(handler, arguments)
    process_calls.enter()
    try:
        with slot(job_type, wait=wait, tenant=tenant, actor=actor, api_token=api_token) as held_slot:
            result, skipped, ran_ms = thread.run_in(held_slot)
    finally:
        if thread.ident is None:  # never started: else it leaves when its handler returns
            process_calls.leave()
    if held_slot.lost:
        raise leases.build_call_ended(held_slot.lease_id)
    return DirectResult(result, skipped, held_slot.waited_ms, ran_ms)


class ProcessCalls:
    """Counts the direct calls of this process: those that wait or run, and handlers that have outlived their call."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Count one more. Raise NoSlot if there are DIRECT_MAX."""
        with self._lock:
            if self.count >= conf.DIRECT_MAX:
                message = _("%d direct calls wait or run in this process already, as many as DIRECT_MAX allows.")
                raise NoSlot(message % self.count)
            self.count += 1

    def leave(self) -> None:
        with self._lock:
            self.count -= 1


process_calls = ProcessCalls()


class HandlerThread(threading.Thread):
    """Runs one handler, in the context, language and time zone of the thread that made it."""

    def __init__(self, handler: Handler[..., Any], params: dict[str, Any]) -> None:
        super().__init__(name=f"direct-{handler.name}", daemon=True)  # a process that stops does not wait for it
        self._handler = handler
        self._ctx = build_context(handler, params)
        self._context = contextvars.copy_context()
        # Django's active language and time zone belong to one thread, whatever context it runs in.
        self._language, self._timezone = translation.get_language(), timezone.get_current_timezone()
        self._slot: DirectSlot | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._has_returned = False
        self._is_abandoned = False

    def run_in(self, held_slot: DirectSlot) -> tuple[Any, str | None, int]:
        """Run the handler in this slot; return its result, why it skipped its work, and how many milliseconds it ran.

        A call whose lease is lost has no result.
        """
        limit_sec = min(conf.DIRECT_MAX_RUNTIME_SEC, self._handler.options.max_runtime_sec or math.inf)
        self._slot, held_slot.ctx = held_slot, self._ctx
        began = time.monotonic()
        self.start()
        held_slot.changed.wait(limit_sec)
        ran_ms = round((time.monotonic() - began) * 1000)
        if held_slot.lost:
            held_slot.outcome = LEASE_EXPIRED_REASON
            self._abandon(held_slot, "has lost its lease")
            return None, None, ran_ms
        if not self._has_returned:
            held_slot.outcome = f"exceeded {limit_sec:g} s"
            self._abandon(held_slot, held_slot.outcome)
            message = _("The handler ran longer than %(sec)g s. A stop is requested; its slot is free.")
            raise HandlerTimedOut(message % {"sec": limit_sec})
        if isinstance(self._error, Skip):
            held_slot.outcome = held_slot.describe(self._error)
            return None, held_slot.clean(self._error, OUTCOME_LENGTH), ran_ms
        if self._error is not None:
            text = format_traceback(self._error, held_slot.clean)
            logger.warning("direct call of %s failed: %s", self._handler.name, text)
            held_slot.outcome = held_slot.describe(self._error)
            raise HandlerFailed(format_reason(self._error, held_slot.clean)) from self._error
        return self._result, None, ran_ms

    def run(self) -> None:
        try:
            self._result = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001 — any exception of a handler is its outcome
            self._error = error
        finally:
            self._end()

    def _call(self) -> Any:
        assert self._slot is not None
        with translation.override(self._language), timezone.override(self._timezone):
            return call_handler(self._handler, self._ctx, self._slot)

    def _end(self) -> None:
        assert self._slot is not None
        try:
            connections.close_all()
        finally:
            process_calls.leave()
            self._has_returned = True
            self._slot.changed.set()
        if self._is_abandoned:
            outcome = "returned" if self._error is None else f"raised {format_reason(self._error, self._slot.clean)}"
            facts = (self._slot.lease_id, self._handler.name, outcome)
            logger.warning("direct call %s: the handler of %s %s after its call was over; dropped", *facts)

    def _abandon(self, held_slot: DirectSlot, reason: str) -> None:
        self._is_abandoned = True
        facts = (held_slot.lease_id, self._handler.name, reason)
        logger.warning("direct call %s of %s %s: its handler was asked to stop", *facts)
        held_slot.request_stop()
