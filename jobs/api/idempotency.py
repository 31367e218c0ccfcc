"""The header Idempotency-Key: the same key and body create one job, however often they are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _

from jobs.api import field_schemas
from jobs.api.auth import ApiRequest
from jobs.api.responses import json_response
from jobs.api.serializers import read_job
from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.validation import fields as validation

HEADER = "Idempotency-Key"
DESCRIPTION = "The same as `idempotency_key`: one key and body create one job, however often they are sent."
REPLAYED = {
    "description": "`true` if an earlier submission with this key created the job.",
    "schema": {"type": "string", "enum": ["true"]},
}
WITH_IDEMPOTENCY_KEY: dict[str, Any] = {  # for `operation(...)` of endpoints that honour the header
    "headers": {HEADER: {"schema": field_schemas.KEY, "description": DESCRIPTION}},
    "openapi_extra": {"responses": {201: {"headers": {"Idempotent-Replayed": REPLAYED}}}},
}


def _merge_key(request: ApiRequest, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the body with the key of the header. Raise InvalidInput if the two keys differ."""
    header = request.headers.get(HEADER)
    if header is None:
        return values
    key = validation.parse_idempotency_key(header, ["header", HEADER])
    if values.get("idempotency_key") not in (None, key):
        raise InvalidInput(["header", HEADER], _("differs from the idempotency_key of the body"), "contradiction")
    return {**values, "idempotency_key": key}


def submit_job(
    request: ApiRequest,
    values: dict[str, Any],
    serialize: Callable[[Job], dict[str, Any]] | None = None,
    service: Callable[..., tuple[Job, bool]] = job_services.submit,
) -> HttpResponse:
    """Return 201 with the current job, whether this submission or an earlier one with its idempotency key created it.

    200 if another job has its unique key: with that job.

    The tenant is the given one, or the principal's own. `serialize` returns another document than that of `GET /jobs`.
    """
    tenant = request.auth.resolve_tenant(values.get("tenant"))
    request.auth.require_template_permission([values])
    values = _merge_key(request, {**values, "tenant": tenant})
    job, created = service(values, actor=request.auth.actor)
    key = values.get("idempotency_key")
    is_replay = not created and key is not None and job.idempotency_key == key
    document = read_job(job.pk, request.auth) if serialize is None else serialize(job)
    response = json_response(document, 201 if created or is_replay else 200)
    if is_replay:
        response["Idempotent-Replayed"] = "true"
    return response
