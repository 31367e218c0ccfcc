"""A job as it is at this moment, as text: for events of jobs that live on, whose rows soon say something else."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from jobs.engine.sql.columns import CLAIM_TOLD
from jobs.models import Job, JobRun, JobTemplate
from jobs.states import Status

# Large, secret, or of no use to anybody outside.
LEFT_OUT = {"checkpoint", "lease_token", "beat_clock", "flow_id", "lane_id", "idempotency_hash", "retry_policy"}
JOB = tuple(field.attname for field in Job._meta.concrete_fields if field.attname not in LEFT_OUT)
RUN = tuple(field.attname for field in JobRun._meta.concrete_fields)
# Of a job that is claimed just now, all that its row may say otherwise later and that the claim does not say itself.
CLAIMED = ("lease_owner", "tokens_used", *CLAIM_TOLD)
FOR_ALL = ("lease_expires_at", "heartbeat_at")  # the same for all that are claimed at once
_AT_A_CLAIM = {"status": str(Status.RUNNING), "status_reason": "", "cancel_requested": False, "cancel_mode": ""}
_OPEN_RUN = {"status": str(Status.RUNNING), "finished_at": None, "exit_code": None, "error": ""}


def take(jobs: Collection[UUID]) -> dict[UUID, str]:
    """By asking for the rows; `outbox` has PostgreSQL do the same without them leaving the server."""
    runs = JobRun.objects.filter(pk__in=jobs).values(*RUN)
    run_of = {run["job_id"]: run for run in runs}
    rows = Job.objects.filter(pk__in=jobs).values(*JOB, "template__name")
    return {
        row["id"]: json.dumps(
            {"template": row.pop("template__name"), "run": run_of.get(row["id"]), "job": row}, default=_plain
        )
        for row in rows
    }


def unpacked(text: str) -> list[str]:
    """Of many jobs that were claimed at once, each as `turned_back` wants it.

    Of each column it has a list, with a value for each of the jobs; or one that is the same for all.
    """
    told: dict[str, Any] = json.loads(text)
    artifacts = told.pop("artifacts")
    return [
        json.dumps({"claimed": {name: _of(said, place) for name, said in told.items()}, "artifacts": each})
        for place, each in enumerate(artifacts)
    ]


def _of(said: Any, place: int) -> Any:
    return said[place] if isinstance(said, list) else said


def is_whole(text: str) -> bool:
    """Whether a snapshot says all by itself; one of a claim does not."""
    return not text.startswith('{"claimed"')


def restore(text: str) -> Job:
    """The job as it was, with all that its shape asks for at hand."""
    told: dict[str, Any] = json.loads(text)
    job: Job = _filled(Job(), told["job"])
    job._state.fields_cache["retried_by"] = None  # only what has ended is retried
    job._state.fields_cache["run"] = None if told["run"] is None else _filled(JobRun(), told["run"])
    if told["template"] is not None:
        job._state.fields_cache["template"] = JobTemplate(name=told["template"])
    return job


def turned_back(text: str, job: Job) -> Job:
    """The job as it was when it was claimed, from its row as it is now."""
    told: dict[str, Any] = json.loads(text)
    _filled(job, {**told["claimed"], **_AT_A_CLAIM, "resolved_at": None})
    job._state.fields_cache["retried_by"] = None
    if (run := getattr(job, "run", None)) is not None:
        _filled(run, {**_OPEN_RUN, "artifacts": told["artifacts"] or {}})
    return job


def _filled(row: Any, values: Mapping[str, Any]) -> Any:
    fields = {field.attname: field for field in row._meta.concrete_fields}
    for name, value in values.items():
        if name in fields:
            setattr(row, name, fields[name].to_python(value))
    return row


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} in a snapshot")
