"""Strict parsing of request bodies and query strings.

`body: Annotated[JobIn, JsonBody()]` in an endpoint's signature is a required JSON body, `OptionalJsonBody()` one that
may be absent; large ones are in `large_requests`. `query: Annotated[JobFilters, StrictQuery()]` parses the query string
into a `QueryParams` subclass: unknown parameters are rejected, a parameter is given at most once unless
its field is a list, and each value passes its validator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
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
from jobs.validation.json import LIST_BYTES
from jobs.validation.sanitize import sanitize_text

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
CHUNK_BYTES = 65_536
MAX_PARAMETERS = 100
Validator = Callable[..., Any]


class RequestFields(BaseModel):
    """Fields of a request, of which only some may be given."""

    def given_fields(self) -> dict[str, Any]:
        """Return the fields that the request contains, with their values, and no others."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class QueryParams(RequestFields):
    """The parameters of a query string; a parameter whose field is a list may be repeated."""


class RequestBody(RequestFields):
    """The fields of a JSON object. Unknown fields are rejected here; the services validate the values."""

    model_config = ConfigDict(extra="forbid")


def body_config(*required: str, **example: Any) -> ConfigDict:
    """Return the config of a body that is documented by an example: `model_config = body_config(reason="…")`.

    The service checks that the `required` fields are given, after it has checked the tenant.
    """
    extra: dict[str, Any] = {"required": list(required)} if required else {}
    return ConfigDict(extra="forbid", json_schema_extra={**extra, "examples": [example]})


def require_json(request: HttpRequest) -> None:
    """Raise UnsupportedMediaType unless the body is declared as JSON in UTF-8."""
    charset = (request.content_params or {}).get("charset", "utf-8")
    if request.content_type != JSON or charset.lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(_("The body must be application/json, in UTF-8."))


def reject_forms(request: HttpRequest) -> None:
    """Raise UnsupportedMediaType if the body is a form with content."""
    if request.content_type in FORMS and _content_length(request) != 0:
        require_json(request)


def reject_oversized_body(request: HttpRequest) -> None:
    """Raise BodyTooLarge if the announced length exceeds every limit, before the caller is authenticated."""
    limit = max(conf.MAX_BODY_BYTES, conf.BULK_BODY_BYTES)
    if (_content_length(request) or 0) > limit:
        raise BodyTooLarge(_("The body is larger than %d bytes.") % limit)


def read_body(request: HttpRequest, limit: int) -> bytes:
    """Return the whole body, with or without a Content-Length. Raise BodyTooLarge beyond `limit` bytes."""
    length, too_large = _content_length(request), BodyTooLarge(_("The body is larger than %d bytes.") % limit)
    if length is not None and length > limit:
        raise too_large
    stream: Any = request
    environ: dict[str, Any] = getattr(request, "environ", {})
    if length is None and environ.get("wsgi.input_terminated"):
        # Django treats a WSGI request without a length as empty; this server provides the body and marks its end.
        stream = environ["wsgi.input"]
    content = bytearray()
    try:
        while chunk := stream.read(min(CHUNK_BYTES, limit + 1 - len(content))):
            content += chunk
            if len(content) > limit:
                raise too_large
    except (UnreadablePostError, OSError):
        raise InvalidInput(["body"], _("ended before it was complete"), "json_invalid") from None
    return bytes(content)


class JsonBodyModel(BodyModel):
    """Parse the body as JSON, at most as large as the setting `limit_key` allows.

    It may have one object or list per `bytes_per_container` of that limit.
    """

    limit_key: ClassVar[str] = "MAX_BODY_BYTES"
    bytes_per_container: ClassVar[int] = LIST_BYTES  # params with more of them are rejected anyway
    may_be_absent: ClassVar[bool] = False

    @classmethod
    def get_request_data(cls, request: HttpRequest, api: Any, path_params: Any) -> dict[str, Any]:
        length = _content_length(request)
        if length:
            require_json(request)  # before any of it is read
        limit: int = getattr(conf, cls.limit_key)
        content = b"" if length == 0 else read_body(request, limit)
        if content:
            require_json(request)
            validation.require_few_containers(content, limit // cls.bytes_per_container)
        is_absent = not content and cls.may_be_absent
        (name,) = cls.model_fields
        return {name: {} if is_absent else validation.decode_json(content, "body")}


class OptionalJsonBodyModel(JsonBodyModel):
    may_be_absent: ClassVar[bool] = True


class JsonBody(Param):  # type: ignore[misc]  # ninja's own parameters do so too
    _model: type[ParamModel] = JsonBodyModel
    _source = "body"

    def __init__(self) -> None:
        super().__init__(...)

    @classmethod
    def _param_source(cls) -> str:
        return cls._source


class OptionalJsonBody(JsonBody):  # type: ignore[misc]
    _model = OptionalJsonBodyModel


def _content_length(request: HttpRequest) -> int | None:
    """Return the announced length of the body, or None if the body ends with its stream."""
    announced, is_asgi = request.META.get("CONTENT_LENGTH"), hasattr(request, "scope")
    if not announced and (is_asgi or "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()):
        return None
    try:
        length = max(int(announced or 0), 0)
    except ValueError:
        return 0
    # Browsers and Django's test client send a form that has only its closing line where there is no content.
    closing_line = f"--{(request.content_params or {}).get('boundary', '')}--\r\n"
    return 0 if request.content_type == FORMS[0] and length == len(closing_line) else length


class StrictQueryModel(QueryModel):
    __ninja_flatten_map__: dict[str, Any]

    @classmethod
    def get_request_data(cls, request: HttpRequest, api: Any, path_params: Any) -> dict[str, Any]:
        return parse_query_string(request, cls.__ninja_flatten_map__, getattr(cls, "__ninja_collection_fields__", ()))


class StrictQuery(JsonBody):  # type: ignore[misc]
    _model = StrictQueryModel
    _source = "query"


def parse_query_string(request: HttpRequest, known: Iterable[str], repeatable: Iterable[str] = ()) -> dict[str, Any]:
    """Return the parameters as {name: text, or list of texts if repeatable}. Raise InvalidInput for any other."""
    raw: str = request.META.get("QUERY_STRING", "")
    try:
        # WSGI passes bytes as Latin-1; bytes that are not UTF-8 are rejected rather than replaced.
        text = raw if raw.isascii() else raw.encode("latin-1").decode()
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeError:
        raise InvalidInput(["query"], _("is not valid UTF-8"), "string_unicode") from None
    except ValueError:
        raise InvalidInput(["query"], _("has more than %d parameters") % MAX_PARAMETERS, "too_long") from None
    params: dict[str, Any] = {}
    for name, value in pairs:
        if name not in known:
            field = ["query", sanitize_text(name, 100)]
            raise InvalidInput(field, _("is not a parameter"), "extra_forbidden")
        validation.parse_text(value, ["query", name], allow_empty=True)
        if name in repeatable:
            params.setdefault(name, []).append(value)
        elif name in params:
            raise InvalidInput(["query", name], _("is given twice"), "repeated")
        else:
            params[name] = value
    return params


def validated_by(validator: Validator, schema: dict[str, Any]) -> tuple[Any, Any]:
    """Return the annotations of a field: `Annotated[str, *validated_by(validation.parse_tenant, {...})]`."""
    return PlainValidator(lambda value: validator(value, [])), WithJsonSchema(schema)


def each_validated_by(validator: Validator, schema: dict[str, Any]) -> tuple[Any, Any]:
    """Same as `validated_by`, for a parameter that may be repeated."""

    def validate_all(values: list[str], field: Any) -> list[Any]:
        return [validator(value, [*field]) for value in values]

    return validated_by(validate_all, {"type": "array", "items": schema})


def one_of(*choices: str) -> Callable[[Any, Any], str]:
    """Return a validator that accepts these values only."""
    return partial(validation.parse_choice, choices=choices)


def integer_between(minimum: int, maximum: int) -> Callable[[Any, Any], int]:
    """Return a validator of integers that are written in decimal digits."""

    def validate(value: str, field: Any) -> int:
        is_plain = value.isascii() and value.isdigit() and len(value) <= 18
        return validation.parse_integer(int(value) if is_plain else value, field, minimum, maximum)

    return validate


def parse_id(value: Any, field: Any) -> UUID:
    """Return the id of a group or a schedule. Raise InvalidInput, not NotFound, if it is malformed."""
    try:
        return validation.parse_id(value)
    except NotFound:
        raise InvalidInput(field, _("is not an id"), "uuid_parsing") from None
