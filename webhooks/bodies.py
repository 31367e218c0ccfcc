"""What receivers get: `{type, timestamp, data}`, where data is a job or a group as the API shows it, secrets masked."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from jobs import groups, shapes
from jobs.actors import SCHEDULER
from jobs.api import shaping
from jobs.api.answers import dump
from jobs.api.callers import Caller
from jobs.models import Job
from jobs.states import Status
from webhooks import snapshots
from webhooks.models import WebhookMessage

logger = logging.getLogger("webhooks.bodies")
MOST_BYTES = 256 * 1024
TEXT_LENGTH = 10_000
MEMBERS = 200
_ANYBODY = Caller(SCHEDULER)


def made(messages: Sequence[WebhookMessage]) -> dict[UUID, bytes]:
    """The bodies of messages about jobs, by the messages' ids. One that cannot be made must not keep the others."""
    try:
        return _made(messages)
    except DatabaseError:
        raise
    except Exception:
        if len(messages) > 1:
            return {pk: text for each in messages for pk, text in made([each]).items()}
        logger.exception("the body of message %s cannot be made; its job is told by its id alone", messages[0].pk)
        return {each.pk: body(each.event, each.at, {"id": str(each.job_id), "truncated": True}) for each in messages}


def of_group(group_id: UUID, event: str, at: datetime) -> bytes:
    row = groups.get(group_id)
    members = shaping.with_relations(groups.tails(group_id))[:MEMBERS]
    document = shapes.group(row, groups.progress([group_id])[group_id])
    return body(event, at, {**document, "jobs": shaping.jobs(members, _ANYBODY)})


def body(event: str, at: datetime, data: dict[str, Any]) -> bytes:
    """At most MOST_BYTES: what is too large loses its payloads first, then long texts, then a group's members."""
    written = dump({"type": event, "timestamp": shapes.moment(at), "data": data})
    for shorter in _SHORTER:
        if len(written) <= MOST_BYTES:
            break
        data = {**shorter(data), "truncated": True}
        written = dump({"type": event, "timestamp": shapes.moment(at), "data": data})
    return written


def _made(messages: Sequence[WebhookMessage]) -> dict[UUID, bytes]:
    told = [(each.pk, job) for each, job in _as_they_were(messages) if job is not None]
    documents = dict(zip((pk for pk, _ in told), shaping.jobs([job for _, job in told], _ANYBODY), strict=True))
    return {each.pk: body(each.event, each.at, documents.get(each.pk, {"id": str(each.job_id)})) for each in messages}


def _as_they_were(messages: Sequence[WebhookMessage]) -> Iterator[tuple[WebhookMessage, Job | None]]:
    read = [each for each in messages if each.snapshot is None or not snapshots.is_whole(each.snapshot)]
    ids = {each.job_id for each in read if each.job_id is not None}
    rows = shaping.with_relations(Job.objects.all()).filter(pk__in=ids) if ids else []
    row_of = {row.pk: row for row in rows}
    times = Counter(each.job_id for each in messages)
    for each in messages:
        row = row_of.get(each.job_id) if each.job_id is not None else None
        row = copy.deepcopy(row) if times[each.job_id] > 1 else row  # it is turned back for each of them
        if each.snapshot is None:
            yield each, None if row is None else _as_it_ended(row, each.retried_by)
        elif snapshots.is_whole(each.snapshot):
            yield each, snapshots.restore(each.snapshot)
        else:
            yield each, None if row is None else snapshots.turned_back(each.snapshot, row)


def _as_it_ended(job: Job, retried_by: UUID | None) -> Job:
    """An end is final, but for what people made of it since: retries, and failures that were accepted."""
    unmended = job.status == Status.FAILED and retried_by is None
    job.resolved_at, job.holds_lane = None, unmended and job.target is not None
    job._state.fields_cache["retried_by"] = None if retried_by is None else Job(pk=retried_by)
    return job


def _without_payloads(data: dict[str, Any]) -> dict[str, Any]:
    return _each(data, lambda job: {**job, "params": None, "run": job["run"] and {**job["run"], "artifacts": None}})


def _with_short_texts(data: dict[str, Any]) -> dict[str, Any]:
    return _each(data, lambda job: dict(_shortened(job.items())))


def _without_members(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "jobs": []} if "jobs" in data else data


_SHORTER = (_without_payloads, _with_short_texts, _without_members)


def _each(data: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Of a job itself, or of each member of a group."""
    if "jobs" in data:
        return {**data, "jobs": [change(job) for job in data["jobs"]]}
    return change(data) if "params" in data else data


def _shortened(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in items:
        if isinstance(value, str):
            yield name, value[:TEXT_LENGTH]
        else:
            yield name, dict(_shortened(value.items())) if isinstance(value, dict) else value
