"""Tasks of the standard, run by our backend: quick, async, failing, with context, with options of ours."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from jobs import NoRetry, Skip
from jobs.contrib.tasks import task
from jobs.errors import TokenLimitExceeded


@task
def add(a: int, b: int = 0) -> int:
    """Adds two numbers."""
    return a + b


@task(queue_name="mail", priority=7)
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
async def add_later(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@task(takes_context=True)
def look(context: Any, word: str) -> dict[str, Any]:
    context.job.progress(1, 2, word)
    return {"attempt": context.attempt, "id": context.task_result.id, "word": word, "job": str(context.job.job_id)}


@task(takes_context=True, max_retries=2)
def fail(context: Any, times: int) -> int:
    if context.attempt <= times:
        raise LookupError(f"attempt {context.attempt}")
    return int(context.attempt)


@task(takes_context=True, max_retries=0)
async def fail_later(context: Any) -> None:
    raise LookupError("later")


@task
def hopeless() -> None:
    raise NoRetry("for good")


@task
def nothing() -> None:
    raise Skip("nothing to do")


@task(max_retries=0)
def unspeakable() -> object:
    return object()


@task(takes_context=True, max_retries=0)
def stoppable(context: Any) -> None:
    context.job.check_cancelled()


@task(takes_context=True, max_retries=0)
def spend(context: Any, tokens: int) -> str:
    with suppress(TokenLimitExceeded):
        context.job.use_tokens(tokens)
    return "spent"


@task(target="press", max_retries=5, max_runtime_sec=60, tags=("a", "b"), resource="printer")
def print_all() -> None:
    """Has all that only a job can have."""
