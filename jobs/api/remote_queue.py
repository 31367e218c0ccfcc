"""The queue as addons see it: submit an intent, look at it, list, cancel."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from ninja import Router

from jobs import parsing, remote, services
from jobs.api import cursors, remote_shaping, walks
from jobs.api import fields as f
from jobs.api.answers import answer, tagged
from jobs.api.bodies import Document, Optional
from jobs.api.callers import ApiRequest
from jobs.api.idempotency import KEYED, with_key
from jobs.api.job_bodies import VerbIn
from jobs.api.job_filters import JobFilters
from jobs.api.job_filters import walks as walks_to
from jobs.api.jobs import JobId
from jobs.api.operations import operation
from jobs.api.pages import Paged
from jobs.api.queries import Asked, gated, one_of
from jobs.api.remote_bodies import STATE_WORDS, IntentIn, IntentOut, IntentPage, SubmittedOut
from jobs.api.schemas import words
from jobs.remote_words import STATES

router = Router(tags=["remote workers"])
QUEUE = "/system/scheduler/queue"


class IntentFilters(Paged):
    state: Annotated[str | None, *gated(one_of(*STATE_WORDS), words(STATE_WORDS))] = None
    addon_id: Annotated[str | None, *gated(parsing.identifier, f.NAME)] = None


@router.post(
    f"{QUEUE}/jobs/submit",
    **operation(
        "queue_submit",
        {201: SubmittedOut},
        scope="submit",
        body=True,
        problems=[409],
        summary="Submit a job intent",
        **KEYED,
    ),
)
def queue_submit(request: ApiRequest, body: Annotated[IntentIn, Document()]) -> HttpResponse:
    """It waits in the same queue as every other job, in the same order and under the same limits, until a remote
    worker of its addon starts it (or a local one, if its type is registered here as local)."""
    said = body.said()
    said["tenant"] = request.auth.tenant_for(said.get("tenant"))
    job, created = remote.submit(with_key(request, said), actor=request.auth.actor)
    replayed = {} if created else {"Idempotent_Replayed": "true"}
    return answer({"job_id": str(job.pk), "state": remote_shaping.state_of(job)}, 201, **replayed)


@router.get(f"{QUEUE}/jobs", **operation("queue_list", IntentPage, summary="List job intents"))
def queue_list(request: ApiRequest, asked: Annotated[IntentFilters, Asked()]) -> HttpResponse:
    """Newest first. A page may be shorter than `limit`, even empty, while `next_cursor` is there."""
    caller = request.auth
    bond = cursors.bound_to("queue_list", caller.tenant, asked.asked())
    place = None if asked.cursor is None else UUID(cursors.place_of(asked.cursor, bond)[0])
    statuses = [str(status) for status, word in STATES.items() if word == asked.state]
    filters = JobFilters.model_construct(addon_id=asked.addon_id)
    ids, further = walks.newest(walks_to(caller, filters, statuses), place, asked.limit)
    found = {row.pk: row for row in caller.jobs().filter(pk__in=ids)}
    items = remote_shaping.several([found[each] for each in ids if each in found], caller)
    next_cursor = None if further is None else cursors.seal(bond, [str(further)])
    return answer({"items": items, "next_cursor": next_cursor})


@router.get(
    f"{QUEUE}/jobs/{{job_id}}",
    **operation("queue_get", IntentOut, problems=[404], summary="Look at a job intent", cached=True),
)
def queue_get(request: ApiRequest, job_id: JobId) -> HttpResponse:
    return tagged(request, remote_shaping.one(parsing.job_id(job_id), request.auth))


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/cancel",
    **operation(
        "queue_cancel",
        IntentOut,
        scope="submit",
        permission="cancel_job",
        body="optional",
        problems=[404, 409],
        summary="End a job, or ask it to stop",
    ),
)
def queue_cancel(request: ApiRequest, job_id: JobId, body: Annotated[VerbIn, Optional()]) -> HttpResponse:
    """What waits ends CANCELED at once; a running job is asked, and is CANCELED when its worker says so."""
    known = request.auth.job_id(job_id)
    services.cancel(known, reason=body.reason or "", actor=request.auth.actor)
    return answer(remote_shaping.one(known, request.auth))
