"""Call the handler, return an outcome. Touches no row."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import traceback
from typing import Any

from jobs import tracing
from jobs.conf import conf
from jobs.conf.rules import YEAR_SEC
from jobs.engine.executors.context import Context, current
from jobs.errors import InvalidInput, JobCancelled, Skip, TokenLimitExceeded
from jobs.outcomes import Completed, Failed, Outcome, Skipped, Stopped
from jobs.policies.retry import RetryFacts
from jobs.registry import registry
from jobs.states import Cause
from jobs.validation.sanitize import salvage_exit_code, salvage_json, salvage_text

ERROR_LENGTH = 64_000
LONGEST_DELAY_SEC = 100.0 * YEAR_SEC
logger = logging.getLogger("jobs.engine.executors.run")


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
        artifacts=salvage_json(artifacts),
        retry_in=decide_retry(job_type, **retry, cause=cause, error=error),
    )


def trace(error: BaseException) -> str:
    """The traceback as a run keeps it."""
    return salvage_text("".join(traceback.format_exception(error)), ERROR_LENGTH)


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
        return Failed(error=reason, reason=reason, cause=Cause.TOKEN_LIMIT, artifacts=salvage_json(artifacts))
    exit_code = salvage_exit_code(ctx.exit_code, 0) if ctx.exit_code else 0
    return Completed(artifacts=salvage_json(artifacts) if artifacts else {}, exit_code=exit_code)


def _ended_by(error: BaseException, job_type: str, ctx: Context, retry: dict[str, Any]) -> Outcome:
    if isinstance(error, Skip):
        return Skipped(salvage_text(str(error), 2000), salvage_json(ctx.artifacts))
    if isinstance(error, TokenLimitExceeded) or ctx.over_token_limit:
        reason = "token limit exceeded"
        return Failed(error=reason, reason=reason, cause=Cause.TOKEN_LIMIT, artifacts=salvage_json(ctx.artifacts))
    if isinstance(error, asyncio.CancelledError | JobCancelled) and ctx.cancelled:
        return Stopped(salvage_json(ctx.artifacts))
    return failed(job_type, error, Cause.ERROR, retry, ctx.artifacts)


def _retry_on(job_type: str) -> tuple[type[BaseException], ...] | None:
    try:
        return registry.get(job_type).options.retry_on
    except InvalidInput:  # a type this process does not know
        return None


def _reason(error: BaseException) -> str:
    lines = salvage_text(str(error), 500).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _exit_code(error: BaseException) -> int:
    return (salvage_exit_code(error.code, 1) or 1) if isinstance(error, SystemExit) else 1
