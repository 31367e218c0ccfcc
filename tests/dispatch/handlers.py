"""What direct calls of the tests run."""

from __future__ import annotations

from typing import Any

from jobs import Skip, job
from jobs.errors import TokenLimitExceeded


@job("direct.echo", resource="ollama")
def echo(ctx: Any, word: str = "hello") -> dict[str, Any]:
    return {"word": word, "job_id": ctx.job_id, "secret": "s3cret"}


@job("direct.later")
async def later(word: str) -> str:
    return word.upper()


@job("direct.boom")
def boom() -> None:
    raise RuntimeError("first line\nsecond line")


@job("direct.leave")
def leave() -> None:
    raise SystemExit(3)


@job("direct.skip")
def skip() -> None:
    raise Skip("nothing new")


@job("direct.spend", token_limit=10)
def spend(ctx: Any, tokens: int) -> int:
    try:
        ctx.use_tokens(tokens)
    except TokenLimitExceeded:
        return -1
    return tokens


@job("direct.patient", max_runtime_sec=0.2)
def patient(ctx: Any) -> None:
    ctx.wait(60)
    ctx.check_cancelled()


@job("direct.until_lost")
def until_lost(ctx: Any) -> bool:
    return bool(ctx.wait(60))


@job("direct.elsewhere", remote=True)
def elsewhere() -> None:
    return None


@job("direct.odd")
def odd() -> object:
    return {1: {2, 3}, "big": object}
