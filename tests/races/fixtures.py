"""Five hundred jobs of every kind: alone, held, in lanes, in groups of both modes, in groups within lanes."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any
from uuid import UUID

from jobs import db
from jobs.actors import PYTHON
from jobs.engine.insert import insert_jobs
from jobs.ids import uuid7
from jobs.models import FailureMode, GroupMode, JobGroup
from jobs.services import job_spec
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.races import NOOP, job_types

LANES = [f"lane-{number}" for number in range(20)]
ALONE, HELD, IN_LANES, GROUPS, PLACES = 190, 10, 180, 40, 3


def create_jobs() -> list[str]:
    assert job_types.noop.name == NOOP
    lanes = cycle(LANES)
    items: list[dict[str, Any]] = [{"job_type": NOOP} for _ in range(ALONE)]
    items += [{"job_type": NOOP, "hold": True} for _ in range(HELD)]
    items += [{"job_type": NOOP, "target": next(lanes)} for _ in range(IN_LANES)]
    ids = job_services.enqueue_many(items)
    shapes = cycle(product(GroupMode.values, FailureMode.values, (False, True)))
    for _ in range(GROUPS):
        mode, on_failure, laned = next(shapes)
        ids += create_group(mode, on_failure, [next(lanes) if laned else None for _ in range(PLACES)])
    return [str(job_id) for job_id in ids]


def create_group(mode: str, on_failure: str, targets: list[str | None]) -> list[UUID]:
    """A group with a member for each target."""
    with db.atomic():
        made = JobGroup.objects.create(id=uuid7(), mode=mode, on_failure=on_failure)
        members = [
            job_spec.SpecBuilder(
                NOOP, {"target": target}, group_id=made.pk, group_index=place, **_waits(mode, place)
            ).build({})
            for place, target in enumerate(targets)
        ]
        return insert_jobs(members, actor=PYTHON)


def _waits(mode: str, place: int) -> dict[str, Any]:
    return {"status": str(Status.PENDING)} if mode == GroupMode.SEQUENTIAL and place else {}
