"""Build the bodies of messages: `{type, timestamp, data}`; data is a job or group as in the API, secrets masked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Value
from django.db.models.functions import Coalesce

from jobs import serializers
from jobs.actors import SCHEDULER
from jobs.api import serializers as api_serializers
from jobs.api.auth import Principal
from jobs.api.responses import encode_json
from jobs.models import Job, JobEvent, JobGroup
from jobs.models.expressions import JsonBytes
from jobs.services import groups
from jobs.states import EventKind
from jobs.time_text import format_time
from webhooks import events
from webhooks.models import WebhookMessage

logger = logging.getLogger("webhooks.payloads")
MAX_BYTES = 256 * 1024
SLICE_BYTES = 2**20  # payload that is read at a time: as Python objects it may take 28 times as much
TEXT_LENGTH = 10_000
MAX_MEMBERS = 200
_PRINCIPAL = Principal(SCHEDULER)


def count_payload_bytes(job_ids: Iterable[UUID]) -> dict[UUID, int]:
    """Count the bytes of params and artifacts of each job, without reading them."""
    artifacts = Coalesce(JsonBytes("run__artifacts"), Value(0))
    rows = Job.objects.filter(pk__in=set(job_ids)).order_by()
    return dict(rows.annotate(size=JsonBytes("params") + artifacts).values_list("pk", "size"))


def build_bodies(messages: Sequence[WebhookMessage], max_bytes: int) -> dict[int, bytes]:
    """Return the bodies of the first messages, until their payloads exceed `max_bytes`; of one at least.

    The payload of a job or group that is too large for a body is never read.
    """
    sizes = count_payload_bytes(message.job_id for message in messages if message.job_id is not None)
    group_ids = {message.group_id for message in messages if message.group_id is not None}
    members = {pk: list(groups.get_latest_attempts(pk).values_list("pk", flat=True)[:MAX_MEMBERS]) for pk in group_ids}
    member_sizes = count_payload_bytes(job_id for ids in members.values() for job_id in ids)
    bodies: dict[int, bytes] = {}
    read_bytes = slice_bytes = 0
    job_messages: list[WebhookMessage] = []  # of the next slice
    for message in messages:
        if message.group_id is not None:
            size = sum(member_sizes.get(job_id, 0) for job_id in members[message.group_id])
            bodies[message.pk] = _build_group_body(message, members[message.group_id], with_payload=size <= MAX_BYTES)
        else:
            size = sizes.get(message.job_id, 0) if message.job_id is not None else 0
            job_messages.append(message)
        read_bytes += size if size <= MAX_BYTES else 0
        if read_bytes > max_bytes:
            break
        if read_bytes - slice_bytes > SLICE_BYTES:
            bodies |= _build_job_bodies(job_messages, sizes)
            job_messages, slice_bytes = [], read_bytes
    return bodies | _build_job_bodies(job_messages, sizes)


def build_body(event: str, at: datetime, data: dict[str, Any]) -> bytes:
    """Return at most MAX_BYTES: a larger body loses its payloads first, then long texts, then a group's members."""
    encoded = encode_json({"type": event, "timestamp": format_time(at), "data": data})
    for shorten in _SHORTENERS:
        if len(encoded) <= MAX_BYTES:
            break
        data = {**shorten(data), "truncated": True}
        encoded = encode_json({"type": event, "timestamp": format_time(at), "data": data})
    return encoded


def _build_job_bodies(messages: Sequence[WebhookMessage], sizes: Mapping[UUID, int]) -> dict[int, bytes]:
    """Return a body for each message. One that cannot be built has the id of its job alone, and blocks no other."""
    try:
        documents = _serialize_jobs({message.job_id for message in messages if message.job_id is not None}, sizes)
        retried_by = _find_retries(messages)
        return {message.pk: _build_job_body(message, documents, retried_by) for message in messages}
    except DatabaseError:
        raise
    except Exception:
        if len(messages) > 1:
            return {pk: body for message in messages for pk, body in _build_job_bodies([message], sizes).items()}
        logger.exception("body of message %s could not be built; it has the job's id alone", messages[0].pk)
        return {message.pk: _build_job_body(message, {}, {}) for message in messages}


def _build_job_body(
    message: WebhookMessage, documents: Mapping[UUID, dict[str, Any]], retried_by: Mapping[tuple[UUID, datetime], str]
) -> bytes:
    """Return the job as it is now, with the status and the retry of the event itself."""
    status = str(events.STATUS_OF[message.event])
    if message.job_id is None or message.job_id not in documents:
        return build_body(message.event, message.at, {"id": str(message.job_id), "status": status, "truncated": True})
    event_fields = {"status": status, "retried_by": retried_by.get((message.job_id, message.at))}
    return build_body(message.event, message.at, {**documents[message.job_id], **event_fields})


def _find_retries(messages: Sequence[WebhookMessage]) -> dict[tuple[UUID, datetime], str]:
    """Return the retries of failed jobs by job and time: both events were written at the same time."""
    failed = {message.job_id for message in messages if message.event == events.FAILED}
    if not failed:
        return {}
    rows = JobEvent.objects.filter(job_id__in=failed, kind=EventKind.RETRY_CREATED).order_by()
    return {(job_id, at): data["retried_by"] for job_id, at, data in rows.values_list("job_id", "at", "data")}


def _serialize_jobs(job_ids: Iterable[UUID], sizes: Mapping[UUID, int]) -> dict[UUID, dict[str, Any]]:
    """Return jobs as in the API, by id."""
    known = [job_id for job_id in job_ids if job_id in sizes]
    large = {job_id for job_id in known if sizes[job_id] > MAX_BYTES}
    rows = [*_read_jobs([job_id for job_id in known if job_id not in large]), *_read_jobs(large, with_payload=False)]
    documents = api_serializers.serialize_jobs(rows, _PRINCIPAL)
    return {
        row.pk: {**document, "truncated": True} if row.pk in large else document
        for row, document in zip(rows, documents, strict=True)
    }


def _read_jobs(job_ids: Iterable[UUID], *, with_payload: bool = True) -> list[Job]:
    ids = list(job_ids)
    if not ids:
        return []
    rows: Any = api_serializers.select_job_relations(Job.objects.all()).filter(pk__in=ids)
    if with_payload:
        return list(rows)
    jobs = list(rows.defer("params", "run__artifacts"))
    for job in jobs:
        job.params = None
        if (run := getattr(job, "run", None)) is not None:
            run.artifacts = None
    return jobs


def _build_group_body(message: WebhookMessage, members: Sequence[UUID], *, with_payload: bool) -> bytes:
    """Return the group as it is now, with the status and round of the event itself; of a deleted one its id alone."""
    event_fields = {"status": message.group_status, "round": message.group_round}
    try:
        document = _serialize_group(message, members, with_payload=with_payload) or {"truncated": True}
    except DatabaseError:
        raise
    except Exception:  # it must block no other message
        logger.exception("body of message %s could not be built; it has the group's id alone", message.pk)
        document = {"truncated": True}
    return build_body(message.event, message.at, {"id": str(message.group_id), **document, **event_fields})


def _serialize_group(message: WebhookMessage, members: Sequence[UUID], *, with_payload: bool) -> dict[str, Any] | None:
    row = JobGroup.objects.filter(pk=message.group_id).first()
    if row is None:
        return None
    document = dict(serializers.serialize_group(row, groups.count_progress([row.pk])[row.pk]))
    document["finished_at"] = format_time(message.at)
    index_of = {job_id: index for index, job_id in enumerate(members)}
    jobs = sorted(_read_jobs(members, with_payload=with_payload), key=lambda job: index_of[job.pk])
    document["jobs"] = api_serializers.serialize_jobs(jobs, _PRINCIPAL)
    return document if with_payload else {**document, "truncated": True}


def _change_jobs(data: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Apply a change to a job, or to each member of a group."""
    if "jobs" in data:
        return {**data, "jobs": [change(job) for job in data["jobs"]]}
    return change(data) if "params" in data else data


def _drop_payload(job: dict[str, Any]) -> dict[str, Any]:
    return {**job, "params": None, "run": job["run"] and {**job["run"], "artifacts": None}}


def _shorten_texts(document: dict[str, Any]) -> dict[str, Any]:
    short = {name: value[:TEXT_LENGTH] for name, value in document.items() if isinstance(value, str)}
    nested = {name: _shorten_texts(value) for name, value in document.items() if isinstance(value, dict)}
    return document | short | nested


_SHORTENERS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
    lambda data: _change_jobs(data, _drop_payload),
    lambda data: _change_jobs(data, _shorten_texts),
    lambda data: {**data, "jobs": []} if "jobs" in data else data,
)
