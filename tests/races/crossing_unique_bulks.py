"""Processes submit the same unique keys in bulk, in opposite orders, over and over."""

from __future__ import annotations

from typing import Any

from jobs.services import jobs as job_services
from tests.races.parallel import SyncPoints
from tests.races.unique_keys import TYPE


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    return {}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> list[str]:
    items = [{"job_type": TYPE, "unique_key": f"key-{number}"} for number in range(plan["size"])]
    meeting.start.wait()
    ids: list[Any] = []
    for _ in range(plan["rounds"]):
        items.reverse() if index % 2 else None
        ids = job_services.enqueue_many(items)
    return [str(job_id) for job_id in ids]
