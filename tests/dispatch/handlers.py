"""What direct calls of the tests run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

from django.db import connection
from django.utils import timezone, translation

from jobs import Skip, job
from jobs.errors import TokenLimitExceeded

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


class Gate:
    """What a handler in a thread of the test waits for, and what it shows of itself meanwhile."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.is_open = threading.Event()
        self.ctx: Any = None
        self.connection: Any = None  # of the handler's thread


gates: dict[str, Gate] = {}


@job("direct.echo", direct=True, resource="ollama")
def echo(ctx: Any, word: str = "hello") -> dict[str, Any]:
    return {"word": word, "job_id": ctx.job_id, "secret": "s3cret"}


@job("direct.later", direct=True)
async def later(word: str) -> str:
    return word.upper()


@job("direct.boom", direct=True)
def boom() -> None:
    raise RuntimeError("first line\nsecond line")


@job("direct.leave", direct=True)
def leave() -> None:
    raise SystemExit(3)


@job("direct.skip", direct=True)
def skip() -> None:
    raise Skip("nothing new")


@job("direct.spend", direct=True, token_limit=10)
def spend(ctx: Any, tokens: int) -> int:
    try:
        ctx.use_tokens(tokens)
    except TokenLimitExceeded:
        return -1
    return tokens


@job("direct.patient", direct=True, max_runtime_sec=0.2)
def patient(ctx: Any) -> None:
    ctx.wait(60)
    ctx.check_cancelled()


@job("direct.patient_task", max_runtime_sec=0.2)
async def patient_task() -> None:
    await asyncio.sleep(60)


@job("direct.until_lost", direct=True)
def until_lost(ctx: Any) -> bool:
    return bool(ctx.wait(60))


@job("direct.elsewhere", remote=True)
def elsewhere() -> None:
    return None


@job("direct.odd", direct=True)
def odd() -> object:
    return {1: {2, 3}, "big": object}


@job("direct.deaf", direct=True)
def deaf(ctx: Any, gate: str) -> str:
    """Use the database, ignore stop requests, and return once the gate is open."""
    connection.ensure_connection()
    gates[gate].ctx, gates[gate].connection = ctx, connection.connection
    gates[gate].is_reached.set()
    gates[gate].is_open.wait(60)
    return gate


@job("direct.endless", direct=True)
async def endless(gate: str) -> None:
    """Wait for ever, unless it is cancelled."""
    gates[gate].is_reached.set()
    try:
        await asyncio.Event().wait()
    finally:
        gates[gate].is_open.set()


@job("direct.surroundings", direct=True)
def surroundings() -> dict[str, Any]:
    return {
        "language": translation.get_language(),
        "time_zone": timezone.get_current_timezone_name(),
        "request_id": request_id.get(),
        "thread": threading.get_ident(),
    }


@job("direct.private")
def private() -> str:
    return "for Python code only"
