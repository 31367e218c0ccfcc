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
from ninja.params.models import BodyModel, Param, ParamModel, QueryModel
from pydantic import BaseModel, ConfigDict, PlainValidator, WithJsonSchema

from jobs.api.problems import BodyTooLarge, UnsupportedMediaType
from jobs.api.responses import JSON
from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound
from jobs.validation import fields as validation
from jobs.validation.sanitize import sanitize_text

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
CHUNK = 65_536
MOST_PARAMETERS = 100


class RequestFields(BaseModel):
    def given_fields(self) -> dict[str, Any]:
        """Return the fields that the caller gave, with their values, and no others."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class Question(RequestFields):
    """The parameters of a query string; a field that is a list may be repeated."""


class Said(RequestFields):
    """The fields of a body: which there are. What is in them is for the services' gates to judge."""

    model_config = ConfigDict(extra="forbid")


def example(*required: str, **fields: Any) -> ConfigDict:
    """Document a body by an example: `model_config = example(reason="…")`.

    The service checks that the `required` fields were given, after it has checked who may give them.
    """
    needed: dict[str, Any] = {"required": list(required)} if required else {}
    return ConfigDict(extra="forbid", json_schema_extra={**needed, "examples": [fields]})


def require_json(request: HttpRequest) -> None:
    charset = (request.content_params or {}).get("charset", "utf-8")
    if request.content_type != JSON or charset.lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(_("The body must be application/json, in UTF-8."))


def refuse_forms(request: HttpRequest) -> None:
    if request.content_type in FORMS and _length(request) != 0:
        require_json(request)


def read(request: HttpRequest, limit: int) -> bytes:
    """Read the whole body, if it is no larger than the limit, with or without an announced length."""
    announced, too_large = _length(request), BodyTooLarge(_("The body is larger than %d bytes.") % limit)
    if announced is not None and announced > limit:
        raise too_large
    stream: Any = request
    environ: dict[str, Any] = getattr(request, "environ", {})
    if announced is None and environ.get("wsgi.input_terminated"):
        # Django gives a WSGI request without a length no body; the server has it, and says that it knows its end.
        stream = environ["wsgi.input"]
    content = bytearray()
    try:
        while chunk := stream.read(min(CHUNK, limit + 1 - len(content))):
            content += chunk
            if len(content) > limit:
                raise too_large
    except (UnreadablePostError, OSError):
        raise InvalidInput(["body"], _("broke off"), "json_invalid") from None
    return bytes(content)


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
        return {name: {} if absent else validation.decode_json(content, "body")}


class OptionalModel(DocumentModel):
    may_be_absent: ClassVar[bool] = True


class BulkModel(DocumentModel):
    limit_key: ClassVar[str] = "BULK_BODY_BYTES"


class Document(Param):  # type: ignore[misc]  # ninja's own parameters do so too
    _model: type[ParamModel] = DocumentModel
    _source = "body"

    def __init__(self) -> None:
        super().__init__(...)

    @classmethod
    def _param_source(cls) -> str:
        return cls._source


class Optional(Document):  # type: ignore[misc]
    _model = OptionalModel


class Bulk(Document):  # type: ignore[misc]
    _model = BulkModel


def _length(request: HttpRequest) -> int | None:
    """The announced length; None where the body ends when it ends."""
    announced, is_asgi = request.META.get("CONTENT_LENGTH"), hasattr(request, "scope")
    if not announced and (is_asgi or "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()):
        return None
    try:
        length = max(int(announced or 0), 0)
    except ValueError:
        return 0
    # A form of nothing but its closing line: what browsers, and Django's test client, send where there is nothing.
    closing_line = f"--{(request.content_params or {}).get('boundary', '')}--\r\n"
    return 0 if request.content_type == FORMS[0] and length == len(closing_line) else length


class StrictModel(QueryModel):
    __ninja_flatten_map__: dict[str, Any]

    @classmethod
    def get_request_data(cls, request: HttpRequest, api: Any, path_params: Any) -> dict[str, Any]:
        return parameters(request, cls.__ninja_flatten_map__, getattr(cls, "__ninja_collection_fields__", ()))


class Asked(Document):  # type: ignore[misc]
    _model = StrictModel
    _source = "query"


def parameters(request: HttpRequest, known: Iterable[str], repeatable: Iterable[str] = ()) -> dict[str, Any]:
    """Parse the query string into {name: text, or list of texts}."""
    written: str = request.META.get("QUERY_STRING", "")
    try:
        # WSGI hands over bytes as Latin-1; what is not UTF-8 underneath is refused rather than replaced.
        plain = written if written.isascii() else written.encode("latin-1").decode()
        pairs = parse_qsl(plain, keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except UnicodeError:
        raise InvalidInput(["query"], _("is not valid UTF-8"), "string_unicode") from None
    except ValueError:
        raise InvalidInput(["query"], _("has more than %d parameters") % MOST_PARAMETERS, "too_long") from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            raise InvalidInput(["query", sanitize_text(name, 100)], _("is not a parameter"), "extra_forbidden")
        validation.parse_text(value, ["query", name], allow_empty=True)
        if name in repeatable:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise InvalidInput(["query", name], _("is said twice"), "repeated")
        else:
            found[name] = value
    return found


def gated(gate: Callable[..., Any], schema: dict[str, Any]) -> tuple[Any, Any]:
    """For `Annotated[str, *gated(validation.tenant, {...})]`: how a parameter is judged, and how it is documented."""
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
        return validation.parse_integer(int(value) if plain else value, field, minimum, maximum)

    return gate


def key(value: Any, field: Any) -> UUID:
    """The id of a group, a schedule: one that cannot be one is a wrong value here."""
    try:
        return validation.parse_id(value)
    except NotFound:
        raise InvalidInput(field, _("is not an id"), "uuid_parsing") from None
