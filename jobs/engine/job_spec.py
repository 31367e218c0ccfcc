"""JobSpec: one new job, validated and with every default applied, on its way to the insert."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

from pydantic_core import from_json, to_json

from jobs import clock
from jobs.engine.sql.columns import SUBMISSION_COLUMNS
from jobs.ids import uuid7
from jobs.models import Job
from jobs.states import OnConflict, Status, UniqueUntil

JsonText = str


@dataclass(slots=True)
class JobSpec:
    """The columns of a job that are known before its insert. JSON columns hold JSON text, without line breaks.

    A position of None means: after all jobs that were submitted before.
    """

    id: UUID
    job_type: str
    flow_id: int
    params: JsonText = "{}"
    status: str = Status.QUEUED.value
    position: int | None = None
    not_before: datetime | None = None
    hold: bool = False
    holds_lane: bool = False
    idempotency_key: str | None = None
    idempotency_hash: str = ""
    retry_of_id: UUID | None = None
    attempt: int = 1
    checkpoint: JsonText | None = None
    template_id: UUID | None = None
    tags: JsonText = "[]"
    tenant: str = "default"
    target: str | None = None
    lane_id: UUID | None = None
    addon_id: str = ""
    resource: str = "default"
    remote: bool = False
    base_priority: int = 50
    deadline_at: datetime | None = None
    time_sensitive: bool = False
    expected_duration_sec: float | None = None
    max_runtime_sec: float | None = None
    cost_units: int = 1
    constraints: JsonText = "{}"
    token_limit: int | None = None
    max_retries: int = 0
    retry_policy: JsonText = "{}"
    group_id: UUID | None = None
    group_index: int | None = None
    schedule_id: UUID | None = None
    fire_time: datetime | None = None
    fence: int = 0
    context: JsonText | None = None
    traceparent: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    on_conflict: str = OnConflict.RETURN.value  # no column: what this submission does if the unique key is taken

    def copy(self) -> JobSpec:
        """Return an equal spec. `dataclasses.replace` takes ten times as long, which slows a bulk insert down."""
        copy = JobSpec(*to_row(self))
        copy.on_conflict = self.on_conflict
        return copy

    def values(self) -> dict[str, Any]:
        """Return the columns by name, JSON columns decoded."""
        values = dict(zip(COLUMNS, to_row(self), strict=True))
        for name in JSON_COLUMNS:
            if values[name] is not None:
                values[name] = from_json(values[name])
        return values


COLUMNS = tuple(field.name for field in fields(JobSpec) if field.name != "on_conflict")
JSON_COLUMNS = ("params", "checkpoint", "tags", "constraints", "retry_policy", "context")
to_row = attrgetter(*COLUMNS)
NO_DEADLINE = {"deadline_at": None, "time_sensitive": False}


def build_retry_spec(
    job: Job,
    *,
    status: Status = Status.QUEUED,
    position: int | None = None,
    checkpoint: Any = None,
    hold: bool = False,
) -> JobSpec:
    """Describe the next attempt of `job`: the fields of its submission, none of its state.

    It carries the unique key only of a job that is unique until its end.
    A deadline that has passed is dropped: the attempt would be skipped.
    """
    submitted = {name: getattr(job, name) for name in SUBMISSION_COLUMNS}
    if job.deadline_at is not None and job.deadline_at <= clock.now():
        submitted |= NO_DEADLINE
    for name in JSON_COLUMNS:
        if submitted.get(name) is not None:
            submitted[name] = dump_json(submitted[name])
    if job.unique_until == UniqueUntil.END:
        submitted |= {"unique_key": job.unique_key, "unique_until": job.unique_until}
    return JobSpec(
        id=uuid7(),
        status=status.value,
        position=job.position if position is None else position,
        hold=hold,
        holds_lane=job.holds_lane and status == Status.QUEUED,  # a PENDING job must not block its predecessor
        retry_of_id=job.pk,
        attempt=job.attempt + 1,
        checkpoint=None if checkpoint is None else dump_json(checkpoint),
        **submitted,
    )


def dump_json(value: Any) -> JsonText:
    """Encode a validated value as JSON on one line."""
    return to_json(value).decode()
