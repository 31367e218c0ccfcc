"""Two processes submit the same in one call each, one of them backwards, again and again.

Many keys of one tenant and one key of many tenants take turns: either could be locked in two orders.
"""

from __future__ import annotations

from typing import Any

from jobs.services import jobs as job_services
from tests.races import NOOP, job_types
from tests.races.parallel import SyncPoints


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    assert job_types.noop.name == NOOP
    return {}


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> dict[str, Any]:
    got: dict[str, str] = {}
    for number in range(plan["rounds"]):
        names = range(plan["size"])
        named = [(f"tenant-{i}", f"{number}") if number % 2 else ("default", f"{number}/{i}") for i in names]
        if index:
            named.reverse()
        items = [{"job_type": NOOP, "tenant": tenant, "idempotency_key": key} for tenant, key in named]
        meeting.start.wait()
        ids = job_services.enqueue_many(items)
        got |= {f"{tenant}/{key}": str(job) for (tenant, key), job in zip(named, ids, strict=True)}
    return got
