"""Every refusal as application/problem+json (RFC 9457): the one place where our errors become HTTP."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from ninja.errors import AuthenticationError, ValidationError

from jobs import errors
from jobs.api.responses import dump
from jobs.validation.sanitize import escape_unprintable

logger = logging.getLogger("jobs.api")

PLACES = ("body", "query", "header", "path")
OUTAGE_RETRY_SEC = 5
MOST_ERRORS, LONGEST = 50, 2000  # what is sent back of a mistake does not grow with the mistake
PROBLEM = "application/problem+json"


class Refusal(errors.JobSchedulerError):
    """What only the API refuses: it knows its own status and headers."""

    status = HTTPStatus.BAD_REQUEST

    def __init__(self, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Unauthorized(Refusal):
    code, status = "unauthorized", HTTPStatus.UNAUTHORIZED

    def __init__(self, detail: str) -> None:
        super().__init__(detail, WWW_Authenticate="Bearer")


class Forbidden(Refusal):
    code, status = "forbidden", HTTPStatus.FORBIDDEN


class CsrfFailed(Forbidden):
    code = "csrf_failed"


class MethodNotAllowed(Refusal):
    code, status = "method_not_allowed", HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, allowed: str) -> None:
        super().__init__(_("This path answers %s only.") % allowed, Allow=allowed)


class BodyTooLarge(Refusal):
    code, status = "body_too_large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMediaType(Refusal):
    code, status = "unsupported_media_type", HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class TooManyRequests(Refusal):
    code, status = "rate_limited", HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, wait_sec: float) -> None:
        super().__init__(_("This token has made its requests for now."), Retry_After=str(max(math.ceil(wait_sec), 1)))


def problem(
    status: int,
    code: str,
    detail: str,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    document = {
        "type": f"urn:jobscheduler:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
        **(extra or {}),
    }
    response = HttpResponse(dump(document), status=status, content_type=PROBLEM, headers=dict(headers or {}))
    response.setdefault("Cache-Control", "no-store")
    return response


def answer_to(request: HttpRequest, error: Any) -> HttpResponse:
    """What went wrong, as far as it is the caller's business."""
    match error:
        case Refusal():
            return problem(error.status, error.code, str(error), headers=error.headers)
        case errors.InvalidInput():
            return _invalid(error)
        case ValidationError():
            return _invalid(errors.InvalidInput.of(error.errors))
        case AuthenticationError():
            detail = _("Send a token as “Authorization: Bearer …”, or sign in to the console.")
            return answer_to(request, Unauthorized(detail))
        case errors.NotFound():  # the same words for what is not there and for what is another tenant's
            return problem(HTTPStatus.NOT_FOUND, errors.NotFound.code, _("There is no such object."))
        case errors.Conflict():
            return _conflict(error)
        case errors.NoSlot():
            retry_after = {"Retry-After": str(max(math.ceil(error.retry_after_sec), 1))}
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, error.code, str(error), headers=retry_after)
        case errors.HandlerFailed():
            return problem(HTTPStatus.BAD_GATEWAY, error.code, str(error))
        case Http404():
            return problem(HTTPStatus.NOT_FOUND, "no_such_path", _("There is nothing at this path."))
        case PermissionDenied():
            return problem(HTTPStatus.FORBIDDEN, Forbidden.code, _("You may not do this."))
        case SuspiciousOperation():
            return problem(HTTPStatus.BAD_REQUEST, "bad_request", _("This request cannot be read."))
        case OperationalError() | InterfaceError():
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            logger.error("the database did not answer: %s", first_line)
            detail = _("The database does not answer. Nothing was changed unless you were told so; try again.")
            retry_after = {"Retry-After": str(OUTAGE_RETRY_SEC)}
            return problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, headers=retry_after)
        case _:  # only the id leaves the site; the log has the rest under it
            error_id = secrets.token_hex(8)
            logger.error(
                "error %s in %s %s", error_id, request.method, escape_unprintable(request.path), exc_info=error
            )
            detail = _("Something went wrong on our side. The log has it under this id.")
            return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", detail, {"error_id": error_id})


def _invalid(error: errors.InvalidInput) -> HttpResponse:
    listed = []
    for each in error.errors[:MOST_ERRORS]:
        # What a service refuses came in the body. Names in it are the caller's own, and may be of any length.
        short = [step[:100] if isinstance(step, str) else step for step in each["loc"]]
        loc = short if short and short[0] in PLACES else ["body", *short]
        listed.append({**each, "loc": loc, "msg": str(each["msg"])})
    malformed = all(each["type"] == "json_invalid" for each in listed)
    status = HTTPStatus.BAD_REQUEST if malformed else HTTPStatus.UNPROCESSABLE_ENTITY
    code = "malformed_json" if malformed else error.code
    return problem(status, code, str(error)[:LONGEST], {"errors": listed})


def _conflict(error: Any) -> HttpResponse:
    extra: dict[str, Any] = {}
    if isinstance(error, errors.WrongState) or error.status:
        extra = {"state": error.status or None, "allowed": error.allowed}
    if error.field:
        extra["field"] = error.field
    if error.tail_id is not None:
        extra["tail_id"] = str(error.tail_id)
    return problem(HTTPStatus.CONFLICT, error.code, str(error), extra)
