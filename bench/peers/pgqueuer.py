"""pgqueuer on asyncpg and uvloop: large batches, unbounded concurrency."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

JOBS = 60_000
REMAINING_SQL = "SELECT count(*) FROM pgqueuer"
WORKERS = 2
BATCH = 500
MIN_JOBS = 10 * BATCH


async def _driver() -> Any:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver

    return AsyncpgDriver(await asyncpg.connect(os.environ["PEER_URL"]))


def enqueue_jobs(jobs: int) -> None:
    import uvloop
    from pgqueuer.queries import Queries

    async def fill() -> None:
        queries = Queries(await _driver())
        await queries.install()
        for start in range(0, jobs, 10_000):
            count = min(10_000, jobs - start)
            await queries.enqueue(["noop"] * count, [None] * count, [0] * count)

    uvloop.run(fill())


def run_worker() -> None:
    import uvloop
    from pgqueuer import PgQueuer
    from pgqueuer.types import QueueExecutionMode

    async def drain() -> None:
        queue = PgQueuer(await _driver())

        @queue.entrypoint("noop")
        async def noop(job: Any) -> None:
            return None

        await queue.run(dequeue_timeout=timedelta(seconds=1), batch_size=BATCH, mode=QueueExecutionMode.drain)

    uvloop.run(drain())
