"""Errors as application/problem+json (RFC 9457): the only place that maps exceptions to HTTP responses."""

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
from jobs.api.peers import get_peer_address
from jobs.api.responses import encode_json
from jobs.validation.sanitize import escape_unprintable

logger = logging.getLogger("jobs.api")

REQUEST_PARTS = ("body", "query", "header", "path")
OUTAGE_RETRY_SEC = 5
MAX_ERRORS, MAX_DETAIL_LENGTH = 50, 2000  # the response to a large invalid request stays small
PROBLEM = "application/problem+json"


class ApiError(errors.JobSchedulerError):
    """An error that only the API raises, with its HTTP status and headers."""

    status = HTTPStatus.BAD_REQUEST

    def __init__(self, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Unauthorized(ApiError):
    code, status = "unauthorized", HTTPStatus.UNAUTHORIZED

    def __init__(self, detail: str) -> None:
        super().__init__(detail, WWW_Authenticate="Bearer")


class Forbidden(ApiError):
    code, status = "forbidden", HTTPStatus.FORBIDDEN


class CsrfFailed(Forbidden):
    code = "csrf_failed"


class MethodNotAllowed(ApiError):
    code, status = "method_not_allowed", HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, allowed: str) -> None:
        super().__init__(_("This path accepts %s only.") % allowed, Allow=allowed)


class BodyTooLarge(ApiError):
    code, status = "body_too_large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class UnsupportedMediaType(ApiError):
    code, status = "unsupported_media_type", HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class TooManyRequests(ApiError):
    code, status = "rate_limited", HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, wait_sec: float, detail: str | None = None) -> None:
        super().__init__(
            detail or _("Rate limit exceeded for this token."), Retry_After=str(max(math.ceil(wait_sec), 1))
        )


def problem_response(
    status: int,
    code: str,
    detail: str,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    """Return a problem document with these members and headers."""
    document = {
        "type": f"urn:jobscheduler:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
        **(extra or {}),
    }
    response = HttpResponse(encode_json(document), status=status, content_type=PROBLEM, headers=dict(headers or {}))
    response.setdefault("Cache-Control", "no-store")
    return response


def error_response(request: HttpRequest, error: Any) -> HttpResponse:
    """Return the problem that describes an exception, without details that are internal."""
    match error:
        case ApiError():
            if isinstance(error, Unauthorized):
                path = escape_unprintable(request.path)
                logger.warning("401 for %s %s from %s", request.method, path, get_peer_address(request))
            return problem_response(error.status, error.code, str(error), headers=error.headers)
        case errors.InvalidInput():
            return _invalid_input_response(error)
        case ValidationError():
            return _invalid_input_response(errors.InvalidInput.from_errors(error.errors))
        case AuthenticationError():
            detail = _("Send a token as “Authorization: Bearer …”, or sign in to the console.")
            return error_response(request, Unauthorized(detail))
        case errors.NotFound():  # the same text, whether the object is absent or of another tenant
            return problem_response(HTTPStatus.NOT_FOUND, errors.NotFound.code, _("There is no such object."))
        case errors.Conflict():
            extra: dict[str, Any] = {}
            if isinstance(error, errors.WrongState) or error.status:
                extra = {"state": error.status or None, "allowed": error.allowed}
            if error.field:
                extra["field"] = error.field
            if error.tail_id is not None:
                extra["tail_id"] = str(error.tail_id)
            if isinstance(error, errors.UniqueKeyTaken) and error.holder_id is not None:
                extra["job_id"] = str(error.holder_id)
            return problem_response(HTTPStatus.CONFLICT, error.code, str(error), extra)
        case errors.NoSlot():
            retry_after = {"Retry-After": str(max(math.ceil(error.retry_after_sec), 1))}
            return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, error.code, str(error), headers=retry_after)
        case errors.HandlerFailed():
            return problem_response(HTTPStatus.BAD_GATEWAY, error.code, str(error))
        case errors.HandlerTimedOut():
            return problem_response(HTTPStatus.GATEWAY_TIMEOUT, error.code, str(error))
        case Http404():
            return problem_response(HTTPStatus.NOT_FOUND, "no_such_path", _("No endpoint exists at this path."))
        case PermissionDenied():
            return problem_response(HTTPStatus.FORBIDDEN, Forbidden.code, _("You may not do this."))
        case SuspiciousOperation():
            return problem_response(HTTPStatus.BAD_REQUEST, "bad_request", _("The request is malformed."))
        case OperationalError() | InterfaceError():
            first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            logger.error("database unavailable: %s", first_line)
            detail = _("The database is unavailable. No change was confirmed; try again later.")
            retry_after = {"Retry-After": str(OUTAGE_RETRY_SEC)}
            return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, headers=retry_after)
        case _:  # the response has only the id under which the log has the details
            error_id = secrets.token_hex(8)
            logger.error(
                "error %s in %s %s", error_id, request.method, escape_unprintable(request.path), exc_info=error
            )
            detail = _("Internal error. The server log has the details under this error id.")
            return problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", detail, {"error_id": error_id})


def _invalid_input_response(error: errors.InvalidInput) -> HttpResponse:
    details = []
    for detail in error.errors[:MAX_ERRORS]:
        # Errors without a request part are about the body. Names come from the request and may have any length.
        loc = [step[:100] if isinstance(step, str) else step for step in detail["loc"]]
        loc = loc if loc and loc[0] in REQUEST_PARTS else ["body", *loc]
        details.append({**detail, "loc": loc, "msg": str(detail["msg"])})
    is_malformed = all(detail["type"] == "json_invalid" for detail in details)
    status = HTTPStatus.BAD_REQUEST if is_malformed else HTTPStatus.UNPROCESSABLE_ENTITY
    code = "malformed_json" if is_malformed else error.code
    return problem_response(status, code, str(error)[:MAX_DETAIL_LENGTH], {"errors": details})
