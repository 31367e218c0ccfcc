"""procrastinate: asynchronous worker, jobs in batches of tens of slots, woken by LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import os
from typing import Any

JOBS = 5_000
LEFT = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
WORKERS = 2
SLOTS = 20


def app() -> Any:
    import procrastinate

    made = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["PEER_URL"], max_size=SLOTS))

    @made.task(name="noop")
    async def noop() -> None:
        return None

    return made


def prepare(jobs: int) -> None:
    async def fill() -> None:
        made = app()
        async with made.open_async():
            await made.schema_manager.apply_schema_async()
            await made.tasks["noop"].batch_defer_async(*[{} for _ in range(jobs)])

    asyncio.run(fill())


def work() -> None:
    app().run_worker(concurrency=SLOTS, wait=False)
