"""Query strings, read strictly: every parameter is known, said once unless it may repeat, and passes its gate.

`asked: Annotated[JobFilters, Asked()]` in an endpoint's signature, where JobFilters is a `Question`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from django.http import HttpRequest
from django.utils.translation import gettext as _
from ninja.params.models import Param, QueryModel
from pydantic import BaseModel, PlainValidator, WithJsonSchema

from jobs import parsing
from jobs.errors import InvalidInput, NotFound

MOST_PARAMETERS = 100


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
    return PlainValidator(partial(_through, gate)), WithJsonSchema(schema)


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


def _through(gate: Callable[..., Any], value: Any) -> Any:
    return gate(value, [])


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
