"""Call a handler with its `ctx`, return its outcome. Touches no row: the worker writes the handler's reports."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from jobs import tracing
from jobs.conf import conf
from jobs.conf.rules import YEAR_SEC
from jobs.engine.member_group import MemberGroup
from jobs.errors import InvalidInput, JobCancelled, Retry, Skip, Snooze, TokenLimitExceeded
from jobs.log_formats import SafeFormatter
from jobs.outcomes import Completed, Failed, Outcome, Skipped, Snoozed, Stopped
from jobs.policies.retry import RetryFacts
from jobs.redaction import SCRUBBED_LENGTH, clean_text, find_secrets
from jobs.registry import registry
from jobs.states import TOKEN_LIMIT_REASON, Cause, StopMode
from jobs.validation.fields import REASON_LENGTH, parse_json_value
from jobs.validation.sanitize import MAX_BYTES, MAX_DEPTH, sanitize_exit_code, sanitize_json, sanitize_text

ERROR_LENGTH, LINE_LENGTH, MESSAGE_LENGTH = 64_000, 10_000, 500  # characters of texts of handlers
MAX_TOKENS = 2**63 - 1  # of the column
LONGEST_DELAY_SEC = 100.0 * YEAR_SEC
DEFAULT_BACKOFF = 2.0
logger = logging.getLogger("jobs.engine.executors.run")
current_context: contextvars.ContextVar[Context | None] = contextvars.ContextVar("jobs_context", default=None)
log = logging.getLogger("jobs.run")
RESULT_HINT = "return None, texts, numbers, lists or dicts, of a pydantic model its model_dump(mode='json')"
CleanText = Callable[[object, int], str]  # text and maximum length in, storable text out


class AttemptFields(Protocol):
    """What running a handler and deciding on a retry need of a job. Claims and rows of jobs have these fields."""

    @property
    def job_type(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_retries(self) -> int: ...
    @property
    def retry_policy(self) -> dict[str, Any]: ...


def run(job: AttemptFields, ctx: Context) -> Outcome:
    """Run a sync handler in this thread."""
    if ctx.job_id is not None and tracing.is_enabled():
        with tracing.JobSpan(ctx.resource, ctx.job_id, job.job_type, ctx.attempt, ctx.traceparent) as span:
            return span.record_outcome(_run(job, ctx))
    return _run(job, ctx)


async def run_async(job: AttemptFields, ctx: Context) -> Outcome:
    """Run an async handler in this task."""
    if ctx.job_id is not None and tracing.is_enabled():
        with tracing.JobSpan(ctx.resource, ctx.job_id, job.job_type, ctx.attempt, ctx.traceparent) as span:
            return span.record_outcome(await _run_async(job, ctx))
    return await _run_async(job, ctx)


def decide_retry(
    job: AttemptFields, *, cause: Cause, error: BaseException | None, delay_sec: float | None = None
) -> float | None:
    """Return the seconds until the retry, or None for no retry, as the retry policy decides.

    `delay_sec` is the delay that the handler itself has named, if it runs elsewhere; here, it raises `Retry`.
    """
    retry_policy = job.retry_policy
    facts = RetryFacts(
        attempt=job.attempt,
        max_retries=job.max_retries,
        cause=cause,
        job_type=job.job_type,
        exception=error,
        error_class="" if error is None else _get_class_path(error),
        retry_on=_get_retry_on(job.job_type),
        base_sec=retry_policy.get("base_sec", conf.RETRY_BASE_SEC),
        backoff=retry_policy.get("backoff", DEFAULT_BACKOFF),
        max_sec=retry_policy.get("max_sec", conf.RETRY_MAX_SEC),
        jitter=retry_policy.get("jitter", conf.RETRY_JITTER),
        random=random.random(),  # noqa: S311 — spreads retries, no secret
    )
    try:
        if isinstance(error, Retry):
            delay_sec = error.delay_sec
        delay = _clamp_delay(conf.policy("RETRY_POLICY").decide(facts))
        return delay if delay is None or delay_sec is None else _clamp_delay(delay_sec)
    except Exception:  # an error in a custom policy, or in a subclass of Retry, must not lose the result
        logger.exception("the retry policy failed for a job of type %s; it is not retried", job.job_type)
        return None


def _clamp_delay(delay: float | None) -> float | None:
    if delay is None:
        return None
    if math.isnan(delay):
        raise ValueError("the delay of a retry must be a number of seconds, not NaN")
    return min(max(float(delay), 0.0), LONGEST_DELAY_SEC)


def build_failure(
    job: AttemptFields,
    error: BaseException,
    cause: Cause,
    artifacts: dict[str, Any],
    clean: CleanText = sanitize_text,
) -> Failed:
    """Return the outcome of a handler that raised, with the retry that the policy decides.

    `clean` is the `Context.clean_text` of the job.
    """
    return Failed(
        error=format_traceback(error, clean),
        reason=format_reason(error, clean),
        cause=cause,
        exit_code=_get_exit_code(error),
        artifacts=sanitize_json(artifacts),
        retry_in=decide_retry(job, cause=cause, error=error),
    )


def format_traceback(error: BaseException, clean: CleanText = sanitize_text) -> str:
    """Return the traceback as a run stores it."""
    return clean("".join(traceback.format_exception(error)), ERROR_LENGTH)


def format_reason(error: BaseException, clean: CleanText = sanitize_text) -> str:
    """Return the class of an exception and the first line of its message."""
    lines = clean(error, MESSAGE_LENGTH).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _run(job: AttemptFields, ctx: Context) -> Outcome:
    token = current_context.set(ctx)
    try:
        handler = registry.get(job.job_type)
        positional = (ctx,) if handler.takes_ctx else ()
        with wrap_call(ctx):
            result = handler.__wrapped__(*positional, **handler.signature.parse_arguments(ctx.params))
    except BaseException as error:  # noqa: BLE001 — any exception of a handler is its outcome
        return _build_outcome_of_error(error, job, ctx)
    finally:
        current_context.reset(token)
    return _build_outcome(result, ctx)


async def _run_async(job: AttemptFields, ctx: Context) -> Outcome:
    token = current_context.set(ctx)
    try:
        handler = registry.get(job.job_type)
        positional = (ctx,) if handler.takes_ctx else ()
        with wrap_call(ctx):
            result = await handler.__wrapped__(*positional, **handler.signature.parse_arguments(ctx.params))
    except BaseException as error:  # noqa: BLE001 — any exception of a handler is its outcome
        return _build_outcome_of_error(error, job, ctx)
    finally:
        current_context.reset(token)
    return _build_outcome(result, ctx)


def wrap_call(ctx: Context) -> AbstractContextManager[None]:
    """Return the context of a call of a handler: the one that HANDLER_WRAPPER makes for it, if it is set."""
    return _enter_wrapper(ctx) if conf.HANDLER_WRAPPER else nullcontext()


@contextmanager
def _enter_wrapper(ctx: Context) -> Iterator[None]:
    """Run the block within HANDLER_WRAPPER, which sees an exception of the handler and cannot suppress it.

    A suppressed exception would record the job as completed.
    """
    wrap = conf.function("HANDLER_WRAPPER")
    assert wrap is not None
    raised: BaseException | None = None
    with wrap(ctx):
        try:
            yield
        except BaseException as error:
            raised = error
            raise
    if raised is not None:
        raise raised


def _build_outcome(result: Any, ctx: Context) -> Outcome:
    artifacts = dict(ctx.artifacts)
    if result is not None:
        artifacts["result"] = result
    if ctx.is_over_token_limit:
        return _build_token_failure(artifacts)
    exit_code = sanitize_exit_code(ctx.exit_code, 0) if ctx.exit_code else 0
    stored = sanitize_json(artifacts, lambda: _warn_of_changed_result(artifacts, ctx)) if artifacts else {}
    return Completed(artifacts=stored, exit_code=exit_code)


def _warn_of_changed_result(artifacts: dict[str, Any], ctx: Context) -> None:
    """Log why the result is not stored as it is. The job has done its work: to fail it would run it again."""
    problem = "the result is not JSON"
    try:
        parse_json_value(artifacts, (), max_depth=MAX_DEPTH, max_bytes=MAX_BYTES)
    except Exception as error:  # noqa: BLE001 — an object in it may raise anything
        problem = sanitize_text(error, MESSAGE_LENGTH)
    ctx.add_log_line("WARNING", f"{problem}; the nearest JSON value is stored instead ({RESULT_HINT})")


def _build_outcome_of_error(error: BaseException, job: AttemptFields, ctx: Context) -> Outcome:
    if isinstance(error, Skip):
        return Skipped(ctx.clean_text(error, REASON_LENGTH), sanitize_json(ctx.artifacts))
    if isinstance(error, TokenLimitExceeded) or ctx.is_over_token_limit:
        return _build_token_failure(ctx.artifacts)
    if isinstance(error, Snooze) and isinstance(error.delay_sec, int | float):
        reason = ctx.clean_text(error, REASON_LENGTH)
        delay = min(error.delay_sec, LONGEST_DELAY_SEC)
        # For a job that was snoozed too often: only its row, which the worker locks later, knows how often.
        retry_in = decide_retry(job, cause=Cause.ERROR, error=error)
        return Snoozed(delay, reason, sanitize_json(ctx.artifacts), retry_in)
    if isinstance(error, asyncio.CancelledError | JobCancelled) and ctx.cancelled:
        return Stopped(sanitize_json(ctx.artifacts))
    return build_failure(job, error, Cause.ERROR, ctx.artifacts, ctx.clean_text)


def _build_token_failure(artifacts: dict[str, Any]) -> Failed:
    reason = TOKEN_LIMIT_REASON
    return Failed(error=reason, reason=reason, cause=Cause.TOKEN_LIMIT, artifacts=sanitize_json(artifacts))


def _get_retry_on(job_type: str) -> tuple[type[BaseException], ...] | None:
    try:
        return registry.get(job_type).options.retry_on
    except InvalidInput:  # a type that this process does not have
        return None


def _get_class_path(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _get_exit_code(error: BaseException) -> int:
    return (sanitize_exit_code(error.code, 1) or 1) if isinstance(error, SystemExit) else 1


class Context:
    """The `ctx` of a handler. It reads and writes memory; the worker writes it to the database."""

    _secrets: tuple[str, ...] | None = None  # of the params; looked for when there is a text to clean

    def __init__(
        self,
        *,
        job_id: UUID | None,
        job_type: str = "",
        params: dict[str, Any],
        attempt: int = 1,
        fence: int = 1,
        resume_from: Any = None,
        artifacts: dict[str, Any] | None = None,
        token_limit: int | None = None,
        tokens_used: int = 0,
        resource: str = "default",
        group_id: UUID | None = None,
        context: dict[str, Any] | None = None,
        traceparent: str | None = None,
        on_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.job_id = job_id
        self.job_type = job_type
        self.params = params
        self.attempt = attempt
        self.fence = fence
        self.resume_from = resume_from
        self.artifacts = dict(artifacts or {})
        self.exit_code = 0
        self.token_limit = token_limit
        self.tokens_used = tokens_used
        self.resource = resource
        self.group_id = group_id
        self.context = context or {}
        self.traceparent = traceparent
        self.log = log
        self.stop_mode: StopMode | None = None
        self.writes = PendingReports()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._on_write = on_write
        self._line_count = 0

    @property
    def group(self) -> MemberGroup | None:
        """The group of the job, with the results of the members before it; None if the job is in no group."""
        if self.job_id is None or self.group_id is None:
            return None
        return MemberGroup(self.group_id, self.job_id)

    @property
    def cancelled(self) -> bool:
        """Return whether the handler should stop: by request, because its worker shuts down, or for a lost lease."""
        return self._stop.is_set()

    def check_cancelled(self) -> None:
        """Raise JobCancelled once the handler should stop. Reads memory only: it may be called often."""
        if self._stop.is_set():
            raise JobCancelled("the handler was requested to stop")

    def wait(self, seconds: float) -> bool:
        """Sleep, but no longer than until the handler should stop; return whether it should."""
        return self._stop.wait(seconds)

    def progress(self, done: float, total: float = 1.0, message: str = "") -> None:
        """Report how far the work is. Written with the next batch; the latest report counts."""
        fraction = min(max(0.0, float(done / total)), 1.0) if total > 0 else 0.0  # in this order, NaN becomes 0
        with self._lock:
            self.writes.progress = (fraction, self.clean_text(message, MESSAGE_LENGTH))
        self._on_write()

    def checkpoint(self, data: Any) -> None:
        """Save data to continue from here: after an interruption it is passed as `ctx.resume_from`."""
        value = parse_json_value(data, "checkpoint")
        with self._lock:
            self.writes.checkpoint = (value,)
            self.writes.urgent = True
        self._on_write()

    def use_tokens(self, n: int) -> None:
        """Count tokens; past the job's limit the job ends FAILED."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ValueError("use_tokens takes a whole number of tokens, 0 or more")
        with self._lock:
            self.tokens_used = min(self.tokens_used + n, MAX_TOKENS)
            self.writes.tokens = self.tokens_used
            self.writes.urgent = True
        self._on_write()
        if self.is_over_token_limit:
            raise TokenLimitExceeded(f"{self.tokens_used} tokens used, {self.token_limit} allowed")

    @property
    def is_over_token_limit(self) -> bool:
        return self.token_limit is not None and self.tokens_used > self.token_limit

    def artifact(self, name: str, value: Any) -> None:
        """Store a value with the run under a name."""
        self.artifacts[sanitize_text(name, 200)] = parse_json_value(value, "artifact")

    def add_log_line(self, level: str, message: str) -> None:
        """Add a line to the job's log; lines past LOG_LINES_PER_JOB are counted, not stored."""
        with self._lock:
            self._line_count += 1
            if self._line_count <= conf.LOG_LINES_PER_JOB:
                self.writes.lines.append((level, self.clean_text(message, LINE_LENGTH)))
            elif self._line_count == conf.LOG_LINES_PER_JOB + 1:
                self.writes.lines.append(("WARNING", f"only the first {conf.LOG_LINES_PER_JOB} lines are kept"))
        self._on_write()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the params, which no stored text may contain."""
        if self._secrets is None:
            self._secrets = find_secrets(self.params)
        return self._secrets

    def clean_text(self, text: object, max_length: int) -> str:
        """Return a text of the handler as it may be stored: with masked secrets, then cut."""
        return clean_text(text, self.secrets, max_length)

    def request_stop(self, mode: StopMode | None) -> None:
        """Let the handler know that it should stop; None: for a shutdown, a timeout or a lost lease."""
        self.stop_mode = mode
        self._stop.set()

    def take_writes(self) -> PendingReports:
        """Return the reports that are not written yet, for the caller to write them, and begin new ones."""
        with self._lock:
            writes, self.writes = self.writes, PendingReports()
        return writes

    def restore_writes(self, writes: PendingReports) -> None:
        """Put back writes that failed, except where newer ones have come meanwhile."""
        with self._lock:
            current = self.writes
            current.progress = current.progress or writes.progress
            current.checkpoint = current.checkpoint or writes.checkpoint
            current.tokens = writes.tokens if current.tokens is None else current.tokens
            current.lines[:0] = writes.lines

    def merge_writes(self, writes: PendingReports) -> None:
        """Add reports that the handler sent from its own process."""
        with self._lock:
            current = self.writes
            current.progress = writes.progress or current.progress
            current.checkpoint = writes.checkpoint or current.checkpoint
            current.tokens = current.tokens if writes.tokens is None else writes.tokens
            current.lines += writes.lines
            current.urgent = current.urgent or writes.urgent
        self._on_write()


@dataclass(slots=True, eq=False)
class PendingReports:
    """Reports of a handler that the worker has not written yet."""

    progress: tuple[float, str] | None = None
    checkpoint: tuple[Any] | None = None
    tokens: int | None = None
    lines: list[tuple[str, str]] = field(default_factory=list)
    urgent: bool = False

    def __bool__(self) -> bool:
        return bool(self.lines) or (self.progress, self.checkpoint, self.tokens) != (None, None, None)


class JobLogHandler(logging.Handler):
    """Copies the log records of a handler, from any logger, into its job's log.

    Installed before other handlers of a logger, it masks the secrets of the job for them, too, and adds `worker`,
    `job_id` and `job_type` to the records, for any formatter.
    """

    def install(self, *loggers: logging.Logger) -> None:
        for logger in loggers:
            logger.handlers.insert(0, self)

    def emit(self, record: logging.LogRecord) -> None:
        ctx = current_context.get()
        fields = record.__dict__
        fields.setdefault("worker", SafeFormatter.worker)
        if ctx is not None and ctx.job_id is not None:
            fields.setdefault("job_id", str(ctx.job_id))
            fields.setdefault("job_type", ctx.job_type)
        if ctx is not None and not record.name.startswith("jobs.engine") and not hasattr(record, "captured"):
            record.captured = True  # a record may arrive through two loggers
            try:
                ctx.add_log_line(record.levelname, self.format(record))
                if ctx.secrets:
                    record.msg, record.args = ctx.clean_text(record.getMessage(), SCRUBBED_LENGTH), None
                    if record.exc_text:  # which other handlers use instead of the exception
                        record.exc_text = ctx.clean_text(record.exc_text, SCRUBBED_LENGTH)
            except Exception:  # noqa: BLE001 — logging never breaks the handler
                self.handleError(record)
