"""Rows as API documents: DISPATCHING is shown as QUEUED, and payloads, which include the texts of handlers, only with
the permission to view them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from jobs import serializers
from jobs.api.auth import Principal
from jobs.errors import NotFound
from jobs.models import Job, JobEvent, JobRun
from jobs.models.job import JobQuerySet
from jobs.payload_visibility import hide_in_event, hide_in_job, hide_in_run, hide_lease_id
from jobs.states import Status

NO_WEBHOOKS = {"pending": 0, "delivered": 0, "failed": 0}

# Only the id of the next attempt and the name of the template are shown.
_DEFERRED = [
    *(f"retried_by__{field.name}" for field in Job._meta.concrete_fields if field.name not in ("id", "retry_of")),
    *(f"template__{name}" for name in ("params", "retry_policy", "tags")),
]


def serialize_jobs(rows: Iterable[Job], principal: Principal) -> list[dict[str, Any]]:
    """Return the documents of jobs, with the extra fields of other apps."""
    jobs = list(rows)
    extras = serializers.read_extra_fields([job.pk for job in jobs])
    return [{**_serialize_job(job, principal), "webhooks": dict(NO_WEBHOOKS), **extras[job.pk]} for job in jobs]


def _serialize_job(row: Job, principal: Principal) -> dict[str, Any]:
    if not principal.can_view_payload:
        hide_in_job(row)
    document = serializers.serialize_job(row)
    document["template"] = None if row.template is None else row.template.name
    if document["status"] == Status.DISPATCHING:
        document["status"] = str(Status.QUEUED)
    if not principal.can_view_payload:
        document = hide_payload(document, "params")
        if document["run"] is not None:
            document["run"] = hide_payload(document["run"], "artifacts")
    return document


def serialize_run(row: JobRun, principal: Principal) -> dict[str, Any]:
    """Return the document of a run."""
    if not principal.can_view_payload:
        hide_in_run(row)
    document = serializers.serialize_run(row)
    return document if principal.can_view_payload else hide_payload(document, "artifacts")


def hide_payload(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the document for a principal that may not see this field."""
    return {**{key: value for key, value in document.items() if key != "truncated"}, name: None}


def serialize_event(row: JobEvent, principal: Principal) -> dict[str, Any]:
    """Return the document of an event."""
    if not principal.can_view_payload:
        hide_in_event(row)
    if not principal.can_view_lease_ids:
        hide_lease_id(row)
    return serializers.serialize_event(row)


def read_job(job_id: UUID, principal: Principal) -> dict[str, Any]:
    """Return the document of a job in its current state. Raise NotFound unless the principal may see it."""
    row = select_job_relations(principal.visible_jobs()).filter(pk=job_id).first()
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    return serialize_jobs([row], principal)[0]


def select_job_relations(jobs: JobQuerySet) -> JobQuerySet:
    """Return the queryset with the relations that `serialize_jobs` needs, and without unused columns."""
    return jobs.select_related("run", "template", "retried_by").defer("checkpoint", *_DEFERRED)
