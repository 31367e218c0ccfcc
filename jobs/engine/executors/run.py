"""Call a handler with its `ctx`, return its outcome. Touches no row: the worker writes what the handler reports."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import random
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from jobs import tracing
from jobs.conf import conf
from jobs.conf.rules import YEAR_SEC
from jobs.errors import InvalidInput, JobCancelled, Skip, TokenLimitExceeded
from jobs.outcomes import Completed, Failed, Outcome, Skipped, Stopped
from jobs.policies.retry import RetryFacts
from jobs.registry import registry
from jobs.states import Cause, StopMode
from jobs.validation.fields import parse_json_value
from jobs.validation.sanitize import sanitize_exit_code, sanitize_json, sanitize_text

ERROR_LENGTH = 64_000
LONGEST_DELAY_SEC = 100.0 * YEAR_SEC
logger = logging.getLogger("jobs.engine.executors.run")
current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("jobs_context", default=None)
log = logging.getLogger("jobs.run")


def run(job_type: str, ctx: Context, retry: dict[str, Any]) -> Outcome:
    """Run a sync handler in this thread. `retry` is what `decide_retry` needs to know of the job."""
    if ctx.job_id is not None and tracing.is_on():
        with tracing.JobSpan(ctx.resource, ctx.job_id, job_type, ctx.attempt, ctx.traceparent) as span:
            return span.record_outcome(_run(job_type, ctx, retry))
    return _run(job_type, ctx, retry)


async def run_async(job_type: str, ctx: Context, retry: dict[str, Any]) -> Outcome:
    """Run an async handler in this task."""
    if ctx.job_id is not None and tracing.is_on():
        with tracing.JobSpan(ctx.resource, ctx.job_id, job_type, ctx.attempt, ctx.traceparent) as span:
            return span.record_outcome(await _run_async(job_type, ctx, retry))
    return await _run_async(job_type, ctx, retry)


def decide_retry(
    job_type: str,
    *,
    attempt: int,
    max_retries: int,
    retry_policy: dict[str, Any],
    cause: Cause,
    error: BaseException | None,
) -> float | None:
    """Ask the retry policy: seconds until the retry, or None."""
    facts = RetryFacts(
        attempt=attempt,
        max_retries=max_retries,
        cause=cause,
        exception=error,
        retry_on=_retry_on(job_type),
        base_sec=retry_policy.get("base_sec", conf.RETRY_BASE_SEC),
        max_sec=retry_policy.get("max_sec", conf.RETRY_MAX_SEC),
        jitter=retry_policy.get("jitter", conf.RETRY_JITTER),
        random=random.random(),  # noqa: S311 — spreads retries, guards nothing
    )
    try:
        return _storable(conf.policy("RETRY_POLICY").decide(facts))
    except Exception:  # a foreign policy's fault must not lose the end that it was asked about
        logger.exception("the retry policy failed for a job of type %s; it is not retried", job_type)
        return None


def _storable(delay: float | None) -> float | None:
    if delay is None:
        return None
    if math.isnan(delay):
        raise ValueError("a delay is a number of seconds")
    return min(max(float(delay), 0.0), LONGEST_DELAY_SEC)


def failed(
    job_type: str, error: BaseException, cause: Cause, retry: dict[str, Any], artifacts: dict[str, Any]
) -> Failed:
    reason = _reason(error)
    return Failed(
        error=trace(error),
        reason=reason,
        cause=cause,
        exit_code=_exit_code(error),
        artifacts=sanitize_json(artifacts),
        retry_in=decide_retry(job_type, **retry, cause=cause, error=error),
    )


def trace(error: BaseException) -> str:
    """The traceback as a run keeps it."""
    return sanitize_text("".join(traceback.format_exception(error)), ERROR_LENGTH)


def _run(job_type: str, ctx: Context, retry: dict[str, Any]) -> Outcome:
    token = current.set(ctx)
    try:
        handler = registry.get(job_type)
        positional = (ctx,) if handler.takes_ctx else ()
        result = handler(*positional, **handler.signature.arguments(ctx.params))
    except BaseException as error:  # noqa: BLE001 — whatever a handler raises is its outcome
        return _ended_by(error, job_type, ctx, retry)
    finally:
        current.reset(token)
    return _returned(result, ctx)


async def _run_async(job_type: str, ctx: Context, retry: dict[str, Any]) -> Outcome:
    token = current.set(ctx)
    try:
        handler = registry.get(job_type)
        positional = (ctx,) if handler.takes_ctx else ()
        result = await handler(*positional, **handler.signature.arguments(ctx.params))
    except BaseException as error:  # noqa: BLE001 — whatever a handler raises is its outcome
        return _ended_by(error, job_type, ctx, retry)
    finally:
        current.reset(token)
    return _returned(result, ctx)


def _returned(result: Any, ctx: Context) -> Outcome:
    artifacts = dict(ctx.artifacts)
    if result is not None:
        artifacts["result"] = result
    if ctx.over_token_limit:
        reason = "token limit exceeded"
        return Failed(error=reason, reason=reason, cause=Cause.TOKEN_LIMIT, artifacts=sanitize_json(artifacts))
    exit_code = sanitize_exit_code(ctx.exit_code, 0) if ctx.exit_code else 0
    return Completed(artifacts=sanitize_json(artifacts) if artifacts else {}, exit_code=exit_code)


def _ended_by(error: BaseException, job_type: str, ctx: Context, retry: dict[str, Any]) -> Outcome:
    if isinstance(error, Skip):
        return Skipped(sanitize_text(str(error), 2000), sanitize_json(ctx.artifacts))
    if isinstance(error, TokenLimitExceeded) or ctx.over_token_limit:
        reason = "token limit exceeded"
        return Failed(error=reason, reason=reason, cause=Cause.TOKEN_LIMIT, artifacts=sanitize_json(ctx.artifacts))
    if isinstance(error, asyncio.CancelledError | JobCancelled) and ctx.cancelled:
        return Stopped(sanitize_json(ctx.artifacts))
    return failed(job_type, error, Cause.ERROR, retry, ctx.artifacts)


def _retry_on(job_type: str) -> tuple[type[BaseException], ...] | None:
    try:
        return registry.get(job_type).options.retry_on
    except InvalidInput:  # a type this process does not know
        return None


def _reason(error: BaseException) -> str:
    lines = sanitize_text(str(error), 500).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _exit_code(error: BaseException) -> int:
    return (sanitize_exit_code(error.code, 1) or 1) if isinstance(error, SystemExit) else 1


class Context:
    """What a handler gets as `ctx`. It reads and writes memory; the worker writes it to the database."""

    def __init__(
        self,
        *,
        job_id: UUID | None,
        params: dict[str, Any],
        attempt: int = 1,
        fence: int = 1,
        resume_from: Any = None,
        artifacts: dict[str, Any] | None = None,
        token_limit: int | None = None,
        tokens_used: int = 0,
        resource: str = "default",
        traceparent: str | None = None,
        on_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.job_id = job_id
        self.params = params
        self.attempt = attempt
        self.fence = fence
        self.resume_from = resume_from
        self.artifacts = dict(artifacts or {})
        self.exit_code = 0
        self.token_limit = token_limit
        self.tokens_used = tokens_used
        self.resource = resource
        self.traceparent = traceparent
        self.log = log
        self.stop_mode: StopMode | None = None
        self.writes = Writes()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._on_write = on_write
        self._lines = 0

    @property
    def cancelled(self) -> bool:
        """True once the handler should stop: somebody asked, the worker shuts down, or the lease is lost."""
        return self._stop.is_set()

    def check_cancelled(self) -> None:
        """Raise JobCancelled once the handler should stop. Reads memory; costs nothing."""
        if self._stop.is_set():
            raise JobCancelled("the job was asked to stop")

    def wait(self, seconds: float) -> bool:
        """Sleep that ends early when the handler should stop; says whether it should."""
        return self._stop.wait(seconds)

    def progress(self, done: float, total: float = 1.0, message: str = "") -> None:
        """Say how far the work is. Written with the next beat; the last word counts."""
        share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
        with self._lock:
            self.writes.progress = (share, sanitize_text(message, 500))
        self._on_write()

    def checkpoint(self, data: Any) -> None:
        """Keep what a later stretch needs to go on from here: it arrives there as `ctx.resume_from`."""
        clean = parse_json_value(data, "checkpoint")
        with self._lock:
            self.writes.checkpoint = (clean,)
            self.writes.urgent = True
        self._on_write()

    def use_tokens(self, n: int) -> None:
        """Count tokens; past the job's limit the job ends FAILED."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ValueError("use_tokens takes a whole number of tokens, 0 or more")
        with self._lock:
            self.tokens_used += n
            self.writes.tokens = self.tokens_used
            self.writes.urgent = True
        self._on_write()
        if self.over_token_limit:
            raise TokenLimitExceeded(f"{self.tokens_used} tokens used, {self.token_limit} allowed")

    @property
    def over_token_limit(self) -> bool:
        return self.token_limit is not None and self.tokens_used > self.token_limit

    def artifact(self, name: str, value: Any) -> None:
        """Keep a value with the run under a name."""
        self.artifacts[sanitize_text(name, 200)] = parse_json_value(value, "artifact")

    def add_line(self, level: str, message: str) -> None:
        """A line for the job's log; past the cap lines are counted, not kept."""
        with self._lock:
            self._lines += 1
            if self._lines <= conf.LOG_LINES_PER_JOB:
                self.writes.lines.append((level, sanitize_text(message, 10_000)))
            elif self._lines == conf.LOG_LINES_PER_JOB + 1:
                self.writes.lines.append(("WARNING", f"only the first {conf.LOG_LINES_PER_JOB} lines are kept"))
        self._on_write()

    def request_stop(self, mode: StopMode | None) -> None:
        self.stop_mode = mode
        self._stop.set()

    def take_writes(self) -> Writes:
        """What has not been written yet; the caller writes it."""
        with self._lock:
            taken, self.writes = self.writes, Writes()
        return taken

    def give_back(self, writes: Writes) -> None:
        """They could not be written: keep them, unless newer ones came meanwhile."""
        with self._lock:
            now = self.writes
            now.progress = now.progress or writes.progress
            now.checkpoint = now.checkpoint or writes.checkpoint
            now.tokens = writes.tokens if now.tokens is None else now.tokens
            now.lines[:0] = writes.lines

    def relay(self, writes: Writes) -> None:
        """Take over what the same handler wrote in its own process."""
        with self._lock:
            now = self.writes
            now.progress = writes.progress or now.progress
            now.checkpoint = writes.checkpoint or now.checkpoint
            now.tokens = now.tokens if writes.tokens is None else writes.tokens
            now.lines += writes.lines
            now.urgent = now.urgent or writes.urgent
        self._on_write()


@dataclass(slots=True, eq=False)
class Writes:
    """What a handler has reported and the worker has not written yet."""

    progress: tuple[float, str] | None = None
    checkpoint: tuple[Any] | None = None
    tokens: int | None = None
    lines: list[tuple[str, str]] = field(default_factory=list)
    urgent: bool = False

    def __bool__(self) -> bool:
        return bool(self.lines) or (self.progress, self.checkpoint, self.tokens) != (None, None, None)


class CaptureLogs(logging.Handler):
    """Copies what a handler logs, through any logger, into its job's log."""

    def emit(self, record: logging.LogRecord) -> None:
        ctx = current.get()
        if ctx is not None and not record.name.startswith("jobs.engine") and not hasattr(record, "captured"):
            record.captured = True  # it may reach us by two ways
            try:
                ctx.add_line(record.levelname, self.format(record))
            except Exception:  # noqa: BLE001 — logging never breaks the handler
                self.handleError(record)
