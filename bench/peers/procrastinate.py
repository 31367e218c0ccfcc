"""procrastinate: asynchronous worker, jobs in batches of tens of slots, woken by LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import os
from typing import Any

JOBS = 5_000
REMAINING_SQL = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
WORKERS = 2
SLOTS = 20


def create_app() -> Any:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["PEER_URL"], max_size=SLOTS))

    @app.task(name="noop")
    async def noop() -> None:
        return None

    return app


def enqueue_jobs(jobs: int) -> None:
    async def fill() -> None:
        app = create_app()
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await app.tasks["noop"].batch_defer_async(*[{} for _ in range(jobs)])

    asyncio.run(fill())


def run_worker() -> None:
    create_app().run_worker(concurrency=SLOTS, wait=False)
