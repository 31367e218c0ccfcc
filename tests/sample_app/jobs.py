"""Job types `sample.*`: quick, slow, sync, async, failing, unstoppable, blocking. Each records its calls."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jobs import NoRetry, Retry, Skip, Snooze, job
from tests.sample_app.context import request_id
from tests.sample_app.ledger import record, record_call

STEP_SEC = 0.01
BEAT_SEC = 0.5
logger = logging.getLogger("tests.sample_app")


@job("sample.noop")
def noop(ctx: Any) -> None:
    with record_call(ctx, "sample.noop"):
        return


@job("sample.add")
def add(a: int, b: int) -> int:
    return a + b


class Answer(BaseModel):
    value: str


@job("sample.answer")
def return_a_model() -> dict[str, Any]:
    return {"answer": Answer(value="42")}


@job("sample.work", direct=True)
def work(ctx: Any, lane: str = "", pool: str = "", number: int = 0, seconds: float = 0.0) -> int:
    """A stretch of work that knows where it belongs, so that the ledger alone can judge lanes and limits."""
    with record_call(ctx, "sample.work", lane=lane, pool=pool, number=number):
        time.sleep(seconds)
        return number


@job("sample.spend", direct=True)
def spend(ctx: Any, tokens: int = 0, seconds: float = 0.0) -> None:
    """Use tokens of a provider, which records them before the job counts them."""
    with record_call(ctx, "sample.spend"):
        record("tokens", job=str(ctx.job_id), fence=ctx.fence, tokens=tokens)
        ctx.use_tokens(tokens)
        time.sleep(seconds)


@job("sample.rare")
def rare(ctx: Any, lane: str = "", pool: str = "", number: int = 0, seconds: float = 0.0) -> int:
    """The same under a name of its own, for a limit of its own."""
    with record_call(ctx, "sample.rare", lane=lane, pool=pool, number=number):
        time.sleep(seconds)
        return number


@job("sample.left")
def run_left(ctx: Any, number: int) -> None:
    with record_call(ctx, "sample.left"):
        _await_beat()


@job("sample.right")
def run_right(ctx: Any, number: int) -> None:
    with record_call(ctx, "sample.right"):
        _await_beat()


@job("sample.part")
def run_part(ctx: Any, number: int, fails: bool = False) -> int:
    with record_call(ctx, "sample.part"):
        _await_beat()
        if fails:
            raise NoRetry("this part fails")
        return number


@job("sample.total")
def total(ctx: Any) -> list[Any]:
    """The final job of a group: what its members have returned."""
    with record_call(ctx, "sample.total", group=str(ctx.group.id)):
        return list(ctx.group.results())


@job("sample.async_total")
async def async_total(ctx: Any) -> list[Any]:
    return list(await ctx.group.aresults())


@job("sample.text")
def return_text(length: int) -> str:
    return "x" * length


def _await_beat() -> None:
    """Until the clock that all processes share strikes: what began before ends together, wherever it runs."""
    time.sleep(BEAT_SEC - time.monotonic() % BEAT_SEC)


@job("sample.sleepy", direct=True)
def sleepy(ctx: Any, seconds: float) -> None:
    """Sleeps, and wakes when it is asked to stop."""
    with record_call(ctx, "sample.sleepy"):
        ctx.wait(seconds)
        ctx.check_cancelled()


@job("sample.query")
def query(ctx: Any, seconds: float) -> None:
    """Uses the database, and keeps its connection while it sleeps."""
    from django.db import connection

    with record_call(ctx, "sample.query"), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        ctx.wait(seconds)
        ctx.check_cancelled()


@job("sample.nap", direct=True)
async def nap(ctx: Any, seconds: float) -> None:
    with record_call(ctx, "sample.nap"):
        await asyncio.sleep(seconds)


@job("sample.long_once")
def long_once(ctx: Any, seconds: float) -> int:
    """Long the first time, short after that."""
    with record_call(ctx, "sample.long_once"):
        if ctx.attempt == 1:
            ctx.wait(seconds)
            ctx.check_cancelled()
        return int(ctx.attempt)


@job("sample.fail")
def fail(ctx: Any, lane: str = "", times: int = 1_000_000) -> int:
    """Fails so many times along its chain."""
    with record_call(ctx, "sample.fail", lane=lane):
        if ctx.attempt <= times:
            raise RuntimeError(f"attempt {ctx.attempt} failed")
        return int(ctx.attempt)


@job("sample.retry")
def retry_after(ctx: Any, seconds: float = 0.0, times: int = 1) -> int:
    """Fails so many times along its chain, and says when to try again."""
    with record_call(ctx, "sample.retry"):
        if ctx.attempt <= times:
            raise Retry(after=seconds)
        return int(ctx.attempt)


@job("sample.snooze")
def snooze(ctx: Any, lane: str = "", seconds: float = 0.0, times: int = 1) -> int:
    """Puts itself back so many times, and counts in its checkpoint."""
    with record_call(ctx, "sample.snooze", lane=lane):
        count = ctx.resume_from or 0
        if count < times:
            ctx.checkpoint(count + 1)
            raise Snooze(seconds, "the file is not there yet")
        return int(count)


@job("sample.fail_at_gate")
def fail_at_gate(ctx: Any, gate: str) -> None:
    """Ignore stop requests; fail once the file `gate` exists."""
    with record_call(ctx, "sample.fail_at_gate"):
        _await(Path(gate))
        raise RuntimeError("told to fail")


@job("sample.hopeless")
def hopeless() -> None:
    raise NoRetry("it would only happen again")


@job("sample.exit")
def leave(code: int) -> None:
    """Ends as a script does that says how it went."""
    raise SystemExit(code)


@job("sample.nothing_to_do")
def nothing_to_do() -> None:
    raise Skip("nothing to do")


@job("sample.count")
def count(ctx: Any, upto: int, pace: float = STEP_SEC) -> int:
    """Counts on from where the last stretch stopped; every number is noted once it is kept."""
    with record_call(ctx, "sample.count"):
        done = ctx.resume_from or 0
        while done < upto:
            ctx.check_cancelled()
            time.sleep(pace)
            done += 1
            record("step", job=str(ctx.job_id), number=done)
            ctx.checkpoint(done)
            ctx.progress(done, upto, f"{done} of {upto}")
        return int(done)


@job("sample.tokens")
def tokens(ctx: Any, amount: int, times: int) -> int:
    with record_call(ctx, "sample.tokens"):
        for _ in range(times):
            ctx.use_tokens(amount)
        return int(ctx.tokens_used)


@job("sample.talk")
def talk(ctx: Any, lines: int) -> None:
    """Speaks through its own logger and through the one of its context."""
    for number in range(lines):
        logger.warning("line %d", number)
    ctx.log.info("that was all")
    ctx.artifact("lines", lines)


_kept: list[bytes] = []


@job("sample.leak")
def leak(ctx: Any, mib: int, seconds: float = 0.0) -> None:
    """Keeps memory that nothing frees. Zeros alone would take no page."""
    with record_call(ctx, "sample.leak"):
        _kept.append(b"x" * (mib * 1024 * 1024))
        time.sleep(seconds)


@job("sample.hog")
def hog(ctx: Any, seconds: float) -> None:
    """Holds the interpreter in C: `PyDLL` does not let go of it while the call lasts."""
    with record_call(ctx, "sample.hog"):
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


@job("sample.block_loop")
async def block_loop(ctx: Any, seconds: float) -> None:
    """What an async handler must not do, and some do."""
    with record_call(ctx, "sample.block_loop"):
        time.sleep(seconds)


@job("sample.deaf", direct=True)
def deaf(ctx: Any, gate: str) -> None:
    """Ignore stop requests; run until the file `gate` exists."""
    with record_call(ctx, "sample.deaf"):
        _await(Path(gate))


@job("sample.deaf_process")
def deaf_process(ctx: Any, gate: str) -> None:
    """The same with a child of its own, which must not outlive it."""
    import subprocess

    with record_call(ctx, "sample.deaf_process"):
        child = subprocess.Popen(["sleep", "600"])
        record("child", job=str(ctx.job_id), child=child.pid)
        _await(Path(gate))


@job("sample.late")
def late(ctx: Any, gate: str) -> str:
    """Waits for the file of this very claim, deaf to stops, then writes all that a handler can write."""
    with record_call(ctx, "sample.late"):
        _await(Path(f"{gate}.{ctx.fence}"))
        text = f"claim {ctx.fence}"
        ctx.progress(ctx.fence, 10, text)
        ctx.checkpoint({"said by": text})
        ctx.use_tokens(ctx.fence)
        ctx.log.warning("said by %s", text)
        record("written", job=str(ctx.job_id), fence=ctx.fence)
        return text


def _await(path: Path) -> None:
    while not path.exists():
        time.sleep(STEP_SEC)


@job("sample.quote", direct=True)
def quote_params(ctx: Any, text: str, password: str, ending: str = "raise") -> None:
    """Quote the params wherever a handler can write."""
    ctx.progress(1, 2, f"{text} {password}")
    ctx.log.warning("%s %s", text, password)
    try:
        raise KeyError(f"{text} {password}")
    except KeyError:
        logger.exception("%s %s", text, password)
    if ending == "skip":
        raise Skip(f"{text} {password}")
    if ending == "raise":
        raise ValueError(f'{text} with {password!r}\n  File "{text}.py", line 7, in {text}\n{text}: {text}')


@job("sample.show_context")
def show_context() -> str:
    """Returns what HANDLER_WRAPPER has restored."""
    return request_id.get()
