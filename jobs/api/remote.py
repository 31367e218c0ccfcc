"""For remote workers: what may start, start it, keep the lease, say how it ended. A session never works."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from ninja import Router
from pydantic import WithJsonSchema

from jobs import parsing, remote
from jobs.api import fields as f
from jobs.api import remote_shaping
from jobs.api.answers import answer
from jobs.api.bodies import Document, Optional, Said
from jobs.api.callers import ApiRequest
from jobs.api.jobs import JobId
from jobs.api.operations import operation
from jobs.api.pages import MOST
from jobs.api.queries import Asked, Question, gated, whole
from jobs.api.remote_bodies import (
    AdmissionIn,
    AdmissionOut,
    BeatIn,
    BeatOut,
    CompleteIn,
    IntentOut,
    IntentPage,
    KickOut,
    ReleaseIn,
    ReleaseOut,
    StartIn,
    StartOut,
)
from jobs.api.schemas import ID_SCHEMA
from jobs.engine.admission import Granted
from jobs.shapes import moment

router = Router(tags=["remote workers"])
QUEUE, LEASE = "/system/scheduler/queue", "/system/scheduler/lease"
DEFAULT = 10
LeaseId = Annotated[str, WithJsonSchema(ID_SCHEMA)]


class Poll(Question):
    addon_id: Annotated[
        str,
        *gated(parsing.identifier, {**f.NAME, "description": "Left out: jobs that belong to no addon."}),
    ] = ""
    limit: Annotated[
        int,
        *gated(whole(1, MOST), {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT}),
    ] = DEFAULT


@router.get(
    f"{QUEUE}/dispatchable",
    **operation("queue_dispatchable", IntentPage, scope="work", summary="What an addon may start"),
)
def queue_dispatchable(request: ApiRequest, asked: Annotated[Poll, Asked()]) -> HttpResponse:
    """Reserves up to `limit` jobs of the addon, within lanes, limits and admission; after them it lists what the addon
    was offered before and nobody has started yet. What nobody starts in time is taken back: ask for as many as you can
    start, and start them in this order."""
    rows = remote.dispatchable(asked.addon_id, tenant=request.auth.tenant, most=asked.limit)
    return answer({"items": remote_shaping.several(rows, request.auth, bare=True), "next_cursor": None})


@router.post(
    f"{QUEUE}/kick", **operation("queue_kick", KickOut, scope="operate", body="optional", summary="Make offers now")
)
def queue_kick(request: ApiRequest, body: Annotated[Said, Optional()]) -> HttpResponse:
    """For every addon that asked lately, without waiting for its next poll."""
    return answer({"dispatched": remote.kick(tenant=request.auth.tenant)})


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/start",
    **operation(
        "queue_start",
        StartOut,
        scope="work",
        body=True,
        problems=[404, 409],
        summary="Start a job that was offered",
    ),
)
def queue_start(request: ApiRequest, job_id: JobId, body: Annotated[StartIn, Document()]) -> HttpResponse:
    """Answers with the lease and all that is needed to run the job. Repeated with the same token, worker and slot it
    answers the same; a slot that has another job is a 409 `slot_busy`."""
    known = request.auth.job_id(job_id)
    return answer(remote_shaping.started(remote.start(known, _token(request), body.said())))


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/complete",
    **operation(
        "queue_complete", IntentOut, scope="work", body=True, problems=[404, 409], summary="Say how a job ended"
    ),
)
def queue_complete(request: ApiRequest, job_id: JobId, body: Annotated[CompleteIn, Document()]) -> HttpResponse:
    """Repeated, it answers the same. A lease that is over is a 409, one that is not yours a 404; neither changes
    anything. CANCELED and PAUSED need a stop request; past its token limit a job ends FAILED whatever is said."""
    known = request.auth.job_id(job_id)
    remote.complete(known, _token(request), body.said())
    return answer(remote_shaping.one(known, request.auth, bare=True))


@router.post(
    f"{LEASE}/request",
    **operation("lease_request", AdmissionOut, scope="work", body=True, summary="Ask whether some work may start now"),
)
def lease_request(request: ApiRequest, body: Annotated[AdmissionIn, Document()]) -> HttpResponse:
    """For work that has no job here: it counts in admission as long as its lease is kept by heartbeats, and in no
    other limit. A denial says when to ask again, and stays the same until then."""
    said = body.said()
    tenant = request.auth.tenant_for(said.pop("tenant", None))
    verdict = remote.request(said, _token(request), tenant=tenant)
    if isinstance(verdict, Granted):
        lease = {"lease_id": str(verdict.lease_id), "lease_expires_at": moment(verdict.expires_at)}
        return answer({"approved": True, **lease})
    return answer({"approved": False, "reason": verdict.reason, "retry_after_sec": verdict.retry_after_sec})


@router.post(
    f"{LEASE}/{{lease_id}}/heartbeat",
    **operation("lease_heartbeat", BeatOut, scope="work", body="optional", problems=[404, 409], summary="Keep a lease"),
)
def lease_heartbeat(request: ApiRequest, lease_id: LeaseId, body: Annotated[BeatIn, Optional()]) -> HttpResponse:
    """Also says how far the work is, and learns whether it should stop. 409: the lease is over, stop at once."""
    kept = remote.heartbeat(lease_id, _token(request), body.said())
    told = {"cancel_requested": kept.cancel_requested, "cancel_mode": kept.cancel_mode}
    return answer({"lease_expires_at": moment(kept.expires_at), **told})


@router.post(
    f"{LEASE}/{{lease_id}}/release",
    **operation(
        "lease_release", ReleaseOut, scope="work", body="optional", problems=[404, 409], summary="Give a lease up"
    ),
)
def lease_release(request: ApiRequest, lease_id: LeaseId, body: Annotated[ReleaseIn, Optional()]) -> HttpResponse:
    """Frees an admission lease; doing so again changes nothing. A job's lease ends with `complete` (409
    `report_with_complete`), unless the job is handed back: then it waits for another worker, its run stays open and its
    checkpoint is kept."""
    remote.release(lease_id, _token(request), body.said())
    return answer({"released": True})


def _token(request: ApiRequest) -> UUID:
    token = request.auth.token_id
    assert token is not None  # no session has the scope
    return token
