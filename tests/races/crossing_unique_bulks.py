"""Processes submit the same unique keys in bulk at once, in opposite orders, with new keys in each round."""

from __future__ import annotations

from typing import Any

from jobs.services import jobs as job_services
from tests.races.parallel import SyncPoints
from tests.races.unique_keys import TYPE


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    return {}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> list[str]:
    ids: list[Any] = []
    for round_number in range(plan["rounds"]):
        keys = [f"key-{round_number}-{number}" for number in range(plan["size"])]
        items = [{"job_type": TYPE, "unique_key": key} for key in (reversed(keys) if index % 2 else keys)]
        meeting.start.wait()
        ids += job_services.enqueue_many(items)
    return [str(job_id) for job_id in ids]
