"""What the example workers run in tests: each call notes its start and end in the ledger.

As a module it is for the Python worker (HANDLERS); as a program, for the one in shell. It needs nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

LEDGER = "RUNS_LOG"


def note(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **facts}) + "\n"
    ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, line.encode())
    finally:
        os.close(ledger)


def work(facts: dict[str, Any], payload: dict[str, Any], check: Any = lambda: None) -> int:
    """As `sample.work`; and it waits for the file `gate` on its first attempt, if there is one to wait for."""
    fields = {**facts, "lane": payload.get("lane", ""), "pool": payload.get("pool", ""), "number": payload["number"]}
    note("start", **fields)
    try:
        time.sleep(payload.get("seconds", 0.0))
        while facts["attempt"] == 1 and "gate" in payload and not Path(payload["gate"]).exists():
            check()
            time.sleep(0.01)
    finally:
        note("end", **fields)
    return int(payload["number"])


def of_job(job: Any) -> int:
    facts = {"job": job.id, "type": job.type, "fence": job.fence, "attempt": job.attempt}
    return work(facts, job.payload, job.check)


HANDLERS = {"remote.work": of_job, "remote.rare": of_job}


if __name__ == "__main__":
    environ = os.environ
    known = {
        "job": environ["JOB_ID"],
        "type": environ["JOB_TYPE"],
        "fence": int(environ["FENCE"]),
        "attempt": int(environ["ATTEMPT"]),
    }
    sys.stdout.write(json.dumps(work(known, json.load(sys.stdin))))
