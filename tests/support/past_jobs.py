"""Create jobs that were submitted and ended at a given time in the past."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobs import clock, ids
from jobs.ids import min_id_at
from jobs.models import Job
from jobs.states import EventKind
from tests.factories import JobEventFactory, JobFactory, JobLogFactory


def make_id(moment: datetime) -> UUID:
    """Return an id as a job of that moment has it."""
    return UUID(int=min_id_at(moment).int | ids.uuid7().int & 0xFFFF_FFFF_FFFF_FFFF)


def create_old_job(*, age: timedelta, **fields: Any) -> Job:
    moment = clock.now() - age
    return JobFactory.create(**{"id": make_id(moment), "created_at": moment, **fields})


def create_ended_job(*, age: timedelta, ended: timedelta | None = None, **fields: Any) -> Job:
    """Create an ended job with events and a log line; `ended` is the time since its end, by default its age."""
    job = create_old_job(age=age, **{"completed": not {"failed", "cancelled"} & set(fields), **fields})
    began, end = clock.now() - age, clock.now() - (age if ended is None else ended)
    JobEventFactory.create(job=job, at=began)
    JobEventFactory.create(job=job, at=end, kind=EventKind(job.status), to_status=job.status)
    JobLogFactory.create(job=job)
    return job
