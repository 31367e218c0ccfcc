"""Idempotency-Key: the same key and body make one job, however often they are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _

from jobs.api import field_schemas, serializers
from jobs.api.auth import ApiRequest
from jobs.api.responses import answer
from jobs.errors import InvalidInput
from jobs.services import jobs as job_services
from jobs.validation import fields as validation

HEADER = "Idempotency-Key"
DESCRIPTION = "The same as `idempotency_key`: one key and body make one job, however often they are sent."
REPLAYED = {
    "description": "`true` if an earlier submission with this key made the job.",
    "schema": {"type": "string", "enum": ["true"]},
}
KEYED: dict[str, Any] = {  # for `operation(...)` of whatever honours the header
    "headers": {HEADER: {"schema": field_schemas.KEY, "description": DESCRIPTION}},
    "openapi_extra": {"responses": {201: {"headers": {"Idempotent-Replayed": REPLAYED}}}},
}


def with_key(request: ApiRequest, said: dict[str, Any]) -> dict[str, Any]:
    """What the body says, with the key of the header; they must not contradict each other."""
    header = request.headers.get(HEADER)
    if header is None:
        return said
    key = validation.parse_idempotency_key(header, ["header", HEADER])
    if said.get("idempotency_key") not in (None, key):
        raise InvalidInput(["header", HEADER], _("is not the idempotency_key of the body"), "contradiction")
    return {**said, "idempotency_key": key}


def submit(
    request: ApiRequest, said: dict[str, Any], worded: Callable[[Any], Any] = lambda document: document
) -> HttpResponse:
    """201 with the job as it is now, whether this submission or an earlier one with its key has made it."""
    job, created = job_services.submit(with_key(request, said), actor=request.auth.actor)
    response = answer(worded(serializers.one(job.pk, request.auth)), 201)
    if not created:
        response["Idempotent-Replayed"] = "true"
    return response
