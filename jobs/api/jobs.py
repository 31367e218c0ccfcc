"""Jobs: submit, list, look at, edit."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext as _
from ninja import Router
from pydantic import WithJsonSchema

from jobs import parsing, services
from jobs.api import cursors, queue_order, shaping, walks
from jobs.api.answers import answer, tagged
from jobs.api.bodies import Bulk, Document
from jobs.api.callers import ApiRequest, Caller
from jobs.api.idempotency import KEYED, submit
from jobs.api.job_bodies import JobEdits, JobIn, JobsIn
from jobs.api.job_filters import JobFilters
from jobs.api.job_filters import walks as walks_to
from jobs.api.operations import operation
from jobs.api.problems import Forbidden
from jobs.api.queries import Asked
from jobs.api.schemas import ID_SCHEMA, BulkOut, JobOut, JobPage
from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.redaction import restore

router = Router(tags=["jobs"])

JobId = Annotated[str, WithJsonSchema(ID_SCHEMA)]


@router.get("/jobs", **operation("jobs_list", JobPage, summary="List jobs"))
def jobs_list(request: ApiRequest, asked: Annotated[JobFilters, Asked()]) -> HttpResponse:
    """Newest first, of the token's tenant; with `order=queue`, what is QUEUED in the order in which it will start:
    priority, position, creation (INV-004).

    `status` and `tag` may be repeated: any of the statuses, all of the tags. A page may be shorter than `limit`, even
    empty, while `next_cursor` is there: follow it until it is null.
    """
    return answer(listed(request.auth, "jobs_list", asked, asked.asked()))


@router.post(
    "/jobs",
    **operation(
        "jobs_create",
        {201: JobOut},
        scope="submit",
        body=True,
        problems=[409],
        summary="Submit a job",
        **KEYED,
    ),
)
def jobs_create(request: ApiRequest, body: Annotated[JobIn, Document()]) -> HttpResponse:
    """The params are checked against the handler's signature and kept as they are: neither a template's nor a
    schedule's later edits touch them (INV-005).

    With an idempotency key, a repeated submission answers with the job that the first one made, as it is now; the same
    key with another body is refused.
    """
    said = body.said()
    said["tenant"] = request.auth.tenant_for(said.get("tenant"))
    return submit(request, said)


@router.post(
    "/jobs/bulk",
    **operation(
        "jobs_create_many",
        {201: BulkOut},
        scope="submit",
        body=True,
        problems=[409],
        summary="Submit many jobs, all or none",
    ),
)
def jobs_create_many(request: ApiRequest, body: Annotated[JobsIn, Bulk()]) -> HttpResponse:
    """Each entry is what `POST /jobs` takes, idempotency keys included. If one is wrong, none is submitted."""
    items = [_of_tenant(index, item, request.auth) for index, item in enumerate(_listed(body.jobs))]
    ids = services.enqueue_many(items, actor=request.auth.actor, limit=conf.API_BULK_LIMIT)
    return answer({"count": len(ids), "ids": [str(each) for each in ids]}, 201)


@router.get("/jobs/{job_id}", **operation("jobs_get", JobOut, problems=[404], summary="Look at a job", cached=True))
def jobs_get(request: ApiRequest, job_id: JobId) -> HttpResponse:
    return tagged(request, shaping.one(parsing.job_id(job_id), request.auth))


@router.patch(
    "/jobs/{job_id}",
    **operation(
        "jobs_update",
        JobOut,
        scope="operate",
        permission="change_job",
        body=True,
        problems=[404, 409],
        summary="Edit a job that waits",
    ),
)
def jobs_update(request: ApiRequest, job_id: JobId, body: Annotated[JobEdits, Document()]) -> HttpResponse:
    """Only what is said changes; null clears. Once the job was dispatched, params and target are frozen for good
    (INV-001): 409 with `field`. The rest can be changed while the job waits, tags at any time.

    Params replace the old ones as a whole; a masked secret that comes back as it was shown keeps its value.
    """
    known, caller, edits = request.auth.job_id(job_id), request.auth, body.said()
    if "params" in edits:
        edits["params"] = _unmasked(known, edits["params"], caller)
    services.update(known, edits, actor=caller.actor)
    return answer(shaping.one(known, caller))


def listed(caller: Caller, operation: str, asked: JobFilters, said: dict[str, Any]) -> dict[str, Any]:
    """One page of jobs, and the cursor for the next."""
    bond = cursors.bound_to(operation, caller.tenant, said)
    place = None if asked.cursor is None else cursors.place_of(asked.cursor, bond)
    ids, further = queue_order.page(caller, asked, place) if asked.order == "queue" else _newest(caller, asked, place)
    next_cursor = None if further is None else cursors.seal(bond, further)
    return {"items": shaping.several(ids, caller), "next_cursor": next_cursor}


def _newest(caller: Caller, asked: JobFilters, place: list[Any] | None) -> tuple[list[UUID], list[Any] | None]:
    before = None if place is None else UUID(place[0])
    ids, further = walks.newest(walks_to(caller, asked), before, asked.limit)
    return ids, None if further is None else [str(further)]


def _listed(items: Any) -> list[Any]:
    if not isinstance(items, list):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    return items


def _of_tenant(index: int, item: Any, caller: Caller) -> Any:
    if not isinstance(item, dict):
        return item  # the service says what is wrong with it
    try:
        return {**item, "tenant": caller.tenant_for(item.get("tenant"))}
    except InvalidInput as error:
        raise error.under("jobs", index) from None


def _unmasked(job_id: UUID, params: Any, caller: Caller) -> Any:
    if not caller.payload:
        raise Forbidden(_("Params that you may not see you may not overwrite either."))
    known = caller.jobs().filter(pk=job_id).values_list("params", flat=True).first()
    return restore(parsing.json_object(params, "params"), known, "params")
