"""Rows as the API shows them: DISPATCHING as QUEUED, and payloads only to those who may see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from jobs import serializers
from jobs.api.auth import Caller
from jobs.errors import NotFound
from jobs.models import Job, JobRun
from jobs.models.job import JobQuerySet
from jobs.states import Status

NO_WEBHOOKS = {"pending": 0, "delivered": 0, "failed": 0}

# Of the job that follows only its id is shown.
_UNSEEN = [f"retried_by__{field.name}" for field in Job._meta.concrete_fields if field.name not in ("id", "retry_of")]


def jobs(rows: Iterable[Job], caller: Caller) -> list[dict[str, Any]]:
    """With what other apps have to say of each."""
    found = list(rows)
    more = serializers.read_extras([row.pk for row in found])
    return [{**_job(row, caller), "webhooks": dict(NO_WEBHOOKS), **more[row.pk]} for row in found]


def _job(row: Job, caller: Caller) -> dict[str, Any]:
    document = serializers.job(row)
    document["template"] = None if row.template is None else row.template.name
    if document["status"] == Status.DISPATCHING:
        document["status"] = str(Status.QUEUED)
    if not caller.payload:
        document["params"] = None
        if document["run"] is not None:
            document["run"]["artifacts"] = None
    return document


def run(row: JobRun, caller: Caller) -> dict[str, Any]:
    document = serializers.run(row)
    return document if caller.payload else {**document, "artifacts": None}


def one(job_id: UUID, caller: Caller) -> dict[str, Any]:
    """A job as it is now."""
    row = with_relations(caller.jobs()).filter(pk=job_id).first()
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    return jobs([row], caller)[0]


def several(ids: Iterable[UUID], caller: Caller) -> list[dict[str, Any]]:
    """The jobs with these ids, in their order; what has been pruned meanwhile is left out."""
    wanted = list(ids)
    found = {row.pk: row for row in with_relations(Job.objects.all()).filter(pk__in=wanted)}
    return jobs((found[each] for each in wanted if each in found), caller)


def with_relations(jobs: JobQuerySet) -> JobQuerySet:
    return jobs.select_related("run", "template", "retried_by").defer("checkpoint", *_UNSEEN)
