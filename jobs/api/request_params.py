"""Request bodies and query strings, read strictly.

`body: Annotated[JobIn, Document()]` in an endpoint's signature is a JSON body that must be there, `Optional()` one that
may be absent, and `Bulk()` one that may be large. `asked: Annotated[JobFilters, Asked()]`, where JobFilters is a
`Question`: every parameter is known, said once unless it may repeat, and passes its gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar
from urllib.parse import parse_qsl
from uuid import UUID

from django.http import HttpRequest
from django.http.request import UnreadablePostError
from django.utils.translation import gettext as _
from ninja.params.models import BodyModel, Param, QueryModel
from pydantic import BaseModel, ConfigDict, PlainValidator, WithJsonSchema

from jobs import parsing
from jobs.api.responses import JSON, BodyTooLarge, UnsupportedMediaType
from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
CHUNK = 65_536
MOST_PARAMETERS = 100


class Said(BaseModel):
    """The fields of a body: which there are. What is in them is for the services' gates to judge."""

    model_config = ConfigDict(extra="forbid")

    def said(self) -> dict[str, Any]:
        """Only what the caller said, as they said it."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def example(**fields: Any) -> ConfigDict:
    """For `model_config = example(reason="…")`: the example that the documentation shows of a body."""
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [fields]})


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


class Question(BaseModel):
    """The parameters of a query string; a field that is a list may be repeated."""

    def asked(self) -> dict[str, Any]:
        """What was said, and nothing else."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class StrictModel(QueryModel):
    __ninja_flatten_map__: dict[str, Any]

    @classmethod
    def get_request_data(cls, request: HttpRequest, api: Any, path_params: Any) -> dict[str, Any]:
        return parameters(request, cls.__ninja_flatten_map__, getattr(cls, "__ninja_collection_fields__", ()))


class Asked(Param):  # type: ignore[misc]  # ninja's own parameters do so too
    _model = StrictModel

    def __init__(self) -> None:
        super().__init__(...)

    @classmethod
    def _param_source(cls) -> str:
        return "query"


def parameters(request: HttpRequest, known: Iterable[str], repeatable: Iterable[str] = ()) -> dict[str, Any]:
    """The query string as {name: text, or list of texts}."""
    found: dict[str, Any] = {}
    for name, value in _pairs(request):
        if name not in known:
            raise InvalidInput(["query", parsing.salvage_text(name, 100)], _("is not a parameter"), "extra_forbidden")
        parsing.text(value, ["query", name], allow_empty=True)
        if name in repeatable:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise InvalidInput(["query", name], _("is said twice"), "repeated")
        else:
            found[name] = value
    return found


def gated(gate: Callable[..., Any], schema: dict[str, Any]) -> tuple[Any, Any]:
    """For `Annotated[str, *gated(parsing.tenant, {...})]`: how a parameter is judged, and how it is documented."""
    return PlainValidator(lambda value: gate(value, [])), WithJsonSchema(schema)


def each(gate: Callable[..., Any], schema: dict[str, Any]) -> tuple[Any, Any]:
    """As `gated`, for a parameter that may be repeated."""

    def all_of(values: list[str], field: Any) -> list[Any]:
        return [gate(value, [*field]) for value in values]

    return gated(all_of, {"type": "array", "items": schema})


def one_of(*words: str) -> Callable[[Any, Any], str]:
    def gate(value: Any, field: Any) -> str:
        if value not in words:
            raise InvalidInput(field, _("must be one of %s") % ", ".join(words), "enum")
        return str(value)

    return gate


def whole(minimum: int, maximum: int) -> Callable[[Any, Any], int]:
    def gate(value: str, field: Any) -> int:
        plain = value.isascii() and value.isdigit() and len(value) <= 18
        return parsing.integer(int(value) if plain else value, field, minimum, maximum)

    return gate


def key(value: Any, field: Any) -> UUID:
    """The id of a group, a schedule: one that cannot be one is a wrong value here."""
    try:
        return parsing.job_id(value)
    except NotFound:
        raise InvalidInput(field, _("is not an id"), "uuid_parsing") from None


def _pairs(request: HttpRequest) -> list[tuple[str, str]]:
    written: str = request.META.get("QUERY_STRING", "")
    try:
        # WSGI hands over bytes as Latin-1; what is not UTF-8 underneath is refused rather than replaced.
        plain = written if written.isascii() else written.encode("latin-1").decode()
        return parse_qsl(plain, keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except UnicodeError:
        raise InvalidInput(["query"], _("is not valid UTF-8"), "string_unicode") from None
    except ValueError:
        raise InvalidInput(["query"], _("has more than %d parameters") % MOST_PARAMETERS, "too_long") from None
