"""Request bodies: read from the stream with a limit of our own, JSON only, through the strict parser.

`body: Annotated[JobIn, Document()]` in an endpoint's signature is a body that must be there, `Optional()` one that may
be absent, and `Bulk()` one that may be large.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest
from django.http.request import UnreadablePostError
from django.utils.translation import gettext as _
from ninja.params.models import BodyModel, Param
from pydantic import BaseModel, ConfigDict

from jobs import parsing
from jobs.api.problems import BodyTooLarge, UnsupportedMediaType
from jobs.conf import conf
from jobs.errors import InvalidInput

JSON = "application/json"
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
CHUNK = 65_536


class Said(BaseModel):
    """The fields of a body: which there are. What is in them is for the services' gates to judge."""

    model_config = ConfigDict(extra="forbid")

    def said(self) -> dict[str, Any]:
        """Only what the caller said, as they said it."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def require_json(request: HttpRequest) -> None:
    charset = (request.content_params or {}).get("charset", "utf-8")
    if request.content_type != JSON or charset.lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(_("The body must be application/json, in UTF-8."))


def refuse_forms(request: HttpRequest) -> None:
    if request.content_type in FORMS and _length(request) != 0:
        require_json(request)


def read(request: HttpRequest, limit: int) -> bytes:
    """The whole body, if it is no larger than the limit. Neither a missing length nor Django's own limit matters."""
    announced = _length(request)
    if announced is not None and announced > limit:
        raise _too_large(limit)
    stream: Any = request if announced is not None else _endless(request)
    found = bytearray()
    try:
        while chunk := stream.read(min(CHUNK, limit + 1 - len(found))):
            found += chunk
            if len(found) > limit:
                raise _too_large(limit)
    except (UnreadablePostError, OSError):
        raise InvalidInput(["body"], _("broke off"), "json_invalid") from None
    return bytes(found)


class DocumentModel(BodyModel):
    limit_key: ClassVar[str] = "MAX_BODY_BYTES"
    may_be_absent: ClassVar[bool] = False

    @classmethod
    def get_request_data(cls, request: HttpRequest, api: Any, path_params: Any) -> dict[str, Any]:
        announced = _length(request)
        if announced:
            require_json(request)  # before any of it is read
        content = b"" if announced == 0 else read(request, getattr(conf, cls.limit_key))
        if content:
            require_json(request)
        absent = not content and cls.may_be_absent
        (name,) = cls.model_fields
        return {name: {} if absent else parsing.decode_json(content, "body")}


class OptionalModel(DocumentModel):
    may_be_absent: ClassVar[bool] = True


class BulkModel(DocumentModel):
    limit_key: ClassVar[str] = "BULK_BODY_BYTES"


class Document(Param):  # type: ignore[misc]  # ninja's own parameters do so too
    _model: type[BodyModel] = DocumentModel

    def __init__(self) -> None:
        super().__init__(...)

    @classmethod
    def _param_source(cls) -> str:
        return "body"


class Optional(Document):  # type: ignore[misc]
    _model = OptionalModel


class Bulk(Document):  # type: ignore[misc]
    _model = BulkModel


def _length(request: HttpRequest) -> int | None:
    """The announced length; None where the body ends when it ends."""
    announced = request.META.get("CONTENT_LENGTH")
    if not announced and (_is_asgi(request) or "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()):
        return None
    try:
        length = max(int(announced or 0), 0)
    except ValueError:
        return 0
    return 0 if _is_empty_form(request, length) else length


def _is_empty_form(request: HttpRequest, length: int) -> bool:
    """A form of nothing but its closing line: what browsers, and Django's test client, send where there is nothing."""
    boundary = (request.content_params or {}).get("boundary", "")
    return request.content_type == FORMS[0] and length == len(f"--{boundary}--\r\n")


def _endless(request: HttpRequest) -> Any:
    """Django gives a WSGI request without a length no body; the server has it, and says so where it knows its end."""
    if _is_asgi(request):
        return request
    environ: dict[str, Any] = getattr(request, "environ", {})
    return environ["wsgi.input"] if environ.get("wsgi.input_terminated") else request


def _is_asgi(request: HttpRequest) -> bool:
    return hasattr(request, "scope")


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(_("The body is larger than %d bytes.") % limit)
