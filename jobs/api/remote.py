"""For addons and their remote workers: submit intents, start what is offered, keep the lease, say how it ended.

A session never works.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from ninja import Router

from jobs.api.auth import ApiRequest, Caller
from jobs.api.idempotency import KEYED, with_key
from jobs.api.index_scan import newest_page
from jobs.api.job_filters import JobFilters, walks
from jobs.api.job_schemas import VerbIn
from jobs.api.operations import operation, submission
from jobs.api.pagination import Place, page_of_ids
from jobs.api.remote_schemas import (
    AdmissionIn,
    AdmissionOut,
    BeatIn,
    BeatOut,
    CompleteIn,
    IntentFilters,
    IntentIn,
    IntentOut,
    IntentPage,
    KickOut,
    Poll,
    ReleaseIn,
    ReleaseOut,
    StartIn,
    StartOut,
    SubmittedOut,
)
from jobs.api.request_params import Asked, Document, Optional, Said
from jobs.api.responses import answer, tagged
from jobs.api.schemas import Id
from jobs.conf import conf
from jobs.engine.remote import starts
from jobs.engine.remote.starts import RemoteStart
from jobs.engine.slots.admission_leases import GrantedLease
from jobs.errors import NotFound
from jobs.models import Job
from jobs.redaction import redact
from jobs.serializers import moment
from jobs.services import jobs as job_services
from jobs.services import remote
from jobs.services.remote import STATES
from jobs.states import Status
from jobs.validation import fields

router = Router(tags=["remote workers"])
work = partial(operation, scope="work")
QUEUE, LEASE = "/system/scheduler/queue", "/system/scheduler/lease"
PLAIN = (
    *("addon_id", "job_type", "cost_units", "priority", "constraints", "expected_duration_sec", "time_sensitive"),
    *("max_runtime_sec", "tags", "tenant", "target"),
)
TIMES = ("created_at", "deadline_at", "reserved_until")


@router.post(f"{QUEUE}/jobs/submit", **submission("queue_submit", SubmittedOut, "Submit a job intent", **KEYED))
def queue_submit(request: ApiRequest, body: Annotated[IntentIn, Document()]) -> HttpResponse:
    """It waits in the same queue as every other job, in the same order and under the same limits, until a remote
    worker of its addon starts it (or a local one, if its type is registered here as local)."""
    said = body.given_fields()
    said["tenant"] = request.auth.tenant_for(said.get("tenant"))
    job, created = remote.submit(with_key(request, said), actor=request.auth.actor)
    replayed = {} if created else {"Idempotent_Replayed": "true"}
    return answer({"job_id": str(job.pk), "state": STATES[Status(job.status)]}, 201, **replayed)


@router.get(f"{QUEUE}/jobs", **operation("queue_list", IntentPage, summary="List job intents"))
def queue_list(request: ApiRequest, asked: Annotated[IntentFilters, Asked()]) -> HttpResponse:
    """Newest first. A page may be shorter than `limit`, even empty, while `next_cursor` is there."""
    caller = request.auth
    statuses = [str(status) for status, word in STATES.items() if word == asked.state]
    filters = JobFilters.model_construct(addon_id=asked.addon_id)

    def read(place: Place | None) -> tuple[list[UUID], Place | None]:
        return newest_page(walks(caller, filters, statuses), place, asked.limit)

    def show(ids: list[UUID]) -> list[dict[str, Any]]:
        found = {row.pk: row for row in caller.jobs().filter(pk__in=ids)}
        return _intents([found[job_id] for job_id in ids if job_id in found], caller)

    return answer(page_of_ids(caller, "queue_list", asked, read, show))


@router.get(
    f"{QUEUE}/jobs/{{job_id}}",
    **operation("queue_get", IntentOut, problems=[404], summary="Look at a job intent", cached=True),
)
def queue_get(request: ApiRequest, job_id: Id) -> HttpResponse:
    return tagged(request, _intent(fields.parse_id(job_id), request.auth))


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
def queue_cancel(request: ApiRequest, job_id: Id, body: Annotated[VerbIn, Optional()]) -> HttpResponse:
    """What waits ends CANCELED at once; a running job is asked, and is CANCELED when its worker says so."""
    known = request.auth.job_id(job_id)
    job_services.cancel(known, reason=body.reason or "", actor=request.auth.actor)
    return answer(_intent(known, request.auth))


@router.get(
    f"{QUEUE}/dispatchable",
    **work("queue_dispatchable", IntentPage, summary="What an addon may start"),
)
def queue_dispatchable(request: ApiRequest, asked: Annotated[Poll, Asked()]) -> HttpResponse:
    """Reserves up to `limit` jobs of the addon, within lanes, limits and admission; after them it lists what the addon
    was offered before and nobody has started yet. What nobody starts in time is taken back: ask for as many as you can
    start, and start them in this order."""
    rows = remote.dispatchable(asked.addon_id, tenant=request.auth.tenant, most=asked.limit)
    return answer({"items": _intents(rows, request.auth, bare=True), "next_cursor": None})


@router.post(
    f"{QUEUE}/kick",
    **operation("queue_kick", KickOut, scope="operate", body="optional", summary="Make offers now"),
)
def queue_kick(request: ApiRequest, body: Annotated[Said, Optional()]) -> HttpResponse:
    """For every addon that asked lately, without waiting for its next poll."""
    return answer({"dispatched": remote.kick(tenant=request.auth.tenant)})


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/start",
    **work("queue_start", StartOut, body=True, problems=[404, 409], summary="Start a job that was offered"),
)
def queue_start(request: ApiRequest, job_id: Id, body: Annotated[StartIn, Document()]) -> HttpResponse:
    """Answers with the lease and all that is needed to run the job. Repeated with the same token, worker and slot it
    answers the same; a slot that has another job is a 409 `slot_busy`."""
    row = remote.start(request.auth.job_id(job_id), _token(request), body.given_fields())
    document = {
        "job_id": str(row.pk),
        "lease_id": str(row.lease_token),
        "lease_expires_at": moment(row.lease_expires_at),
        "lease_sec": conf.LEASE_SEC,
        "heartbeat_sec": conf.HEARTBEAT_SEC,
        "payload": row.params,
        "checkpoint": row.checkpoint,
        **{name: getattr(row, name) for name in ("attempt", "fence", "max_runtime_sec", "token_limit", "tokens_used")},
    }
    return answer(document)


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/complete",
    **work("queue_complete", IntentOut, body=True, problems=[404, 409], summary="Say how a job ended"),
)
def queue_complete(request: ApiRequest, job_id: Id, body: Annotated[CompleteIn, Document()]) -> HttpResponse:
    """Repeated, it answers the same. A lease that is over is a 409, one that is not yours a 404; neither changes
    anything. CANCELED and PAUSED need a stop request; past its token limit a job ends FAILED whatever is said."""
    known = request.auth.job_id(job_id)
    remote.complete(known, _token(request), body.given_fields())
    return answer(_intent(known, request.auth, bare=True))


@router.post(
    f"{LEASE}/request",
    **work("lease_request", AdmissionOut, body=True, summary="Ask whether some work may start now"),
)
def lease_request(request: ApiRequest, body: Annotated[AdmissionIn, Document()]) -> HttpResponse:
    """For work that has no job here: it counts in admission as long as its lease is kept by heartbeats, and in no
    other limit. A denial says when to ask again, and stays the same until then."""
    said = body.given_fields()
    tenant = request.auth.tenant_for(said.pop("tenant", None))
    verdict = remote.request(said, _token(request), tenant=tenant)
    if isinstance(verdict, GrantedLease):
        lease = {"lease_id": str(verdict.lease_id), "lease_expires_at": moment(verdict.expires_at)}
        return answer({"approved": True, **lease})
    return answer({"approved": False, "reason": verdict.reason, "retry_after_sec": verdict.retry_after_sec})


@router.post(
    f"{LEASE}/{{lease_id}}/heartbeat",
    **work("lease_heartbeat", BeatOut, body="optional", problems=[404, 409], summary="Keep a lease"),
)
def lease_heartbeat(request: ApiRequest, lease_id: Id, body: Annotated[BeatIn, Optional()]) -> HttpResponse:
    """Also says how far the work is, and learns whether it should stop. 409: the lease is over, stop at once."""
    kept = remote.heartbeat(lease_id, _token(request), body.given_fields())
    told = {"cancel_requested": kept.cancel_requested, "cancel_mode": kept.cancel_mode}
    return answer({"lease_expires_at": moment(kept.expires_at), **told})


@router.post(
    f"{LEASE}/{{lease_id}}/release",
    **work("lease_release", ReleaseOut, body="optional", problems=[404, 409], summary="Give a lease up"),
)
def lease_release(request: ApiRequest, lease_id: Id, body: Annotated[ReleaseIn, Optional()]) -> HttpResponse:
    """Frees an admission lease; doing so again changes nothing. A job's lease ends with `complete` (409
    `report_with_complete`), unless the job is handed back: then it waits for another worker, its run stays open and its
    checkpoint is kept."""
    remote.release(lease_id, _token(request), body.given_fields())
    return answer({"released": True})


def _token(request: ApiRequest) -> UUID:
    token = request.auth.token_id
    assert token is not None  # no session has the scope
    return token


def _intent(job_id: UUID, caller: Caller, *, bare: bool = False) -> dict[str, Any]:
    """A job as it is now, in the words of addons; `bare` is for its worker."""
    row = caller.jobs().filter(pk=job_id).first()
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    return _intents([row], caller, bare=bare)[0]


def _intents(rows: list[Job], caller: Caller, *, bare: bool = False) -> list[dict[str, Any]]:
    """Secrets are masked, except for those who are to work on them."""
    begun = starts.find_starts(rows)
    return [_shape(row, begun.get(row.pk), caller, bare) for row in rows]


def _shape(row: Job, begun: RemoteStart | None, caller: Caller, bare: bool) -> dict[str, Any]:
    masked = redact(row.params) if caller.payload and not bare else None
    return {
        "job_id": str(row.pk),
        **{name: getattr(row, name) for name in PLAIN},
        **{name: moment(getattr(row, name)) for name in TIMES},
        "state": STATES[Status(row.status)],
        "attempts": row.attempt,
        "next_earliest_start_at": moment(row.recheck_at or row.not_before),
        "lease_id": None if begun is None else str(begun.lease_id),
        "pid": None if begun is None else begun.pid,
        "reason": row.status_reason,
        "payload": row.params if bare else masked,
    }
