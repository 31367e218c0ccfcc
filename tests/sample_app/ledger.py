"""Record calls of handlers in a file outside of the database, with a clock that all processes share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "RUNS_LOG"


def record(event: str, **facts: Any) -> None:
    """Append a line to the ledger that the environment names, if any."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **facts}) + "\n"
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, line.encode())
    finally:
        os.close(ledger)


@contextmanager
def record_call(ctx: Any, job_type: str, **facts: Any) -> Iterator[None]:
    """Record start and end of a call; the end is missing only if the process was killed."""
    fields = {"job": str(ctx.job_id), "type": job_type, "fence": ctx.fence, "attempt": ctx.attempt, **facts}
    record("start", **fields)
    try:
        yield
    finally:
        record("end", **fields)
