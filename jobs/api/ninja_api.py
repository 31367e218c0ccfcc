"""The NinjaAPI subclass of the scheduler.

Errors are problem documents, paths work with and without a trailing slash under any prefix, and the OpenAPI document
has the paths of the prefix it is requested under and lists every status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, re_path
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from django.views.decorators.http import require_safe
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, ValidationError, ValidationErrorContext

from jobs import db
from jobs.api.docs_page import ASSETS, send_asset, show_docs
from jobs.api.problems import PROBLEM, MethodNotAllowed, error_response
from jobs.api.request_params import parse_query_string, reject_oversized_body
from jobs.api.responses import etag_response
from jobs.errors import InvalidInput

View = Callable[..., HttpResponseBase]
VARY_HEADERS = ("Authorization", "X-API-Key", "Cookie", "Accept-Language")
# Messages and types for the errors that pydantic finds: it checks only which fields are given.
STRUCTURE_ERRORS = {
    "model_type": (gettext_noop("must be an object"), "dict_type"),
    "model_attributes_type": (gettext_noop("must be an object"), "dict_type"),
    "extra_forbidden": (gettext_noop("is not a known field"), "extra_forbidden"),
    "missing": (gettext_noop("is missing"), "missing"),
}
SCHEMAS = "#/components/schemas/"
DOCUMENT_PATH, DOCS_PATH = "openapi.json", "docs"
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
CHALLENGE = {"WWW-Authenticate": {"schema": {"type": "string"}}}
SUCCESS_DESCRIPTIONS = {"200": "OK.", "201": "Created.", "204": "Deleted.", "304": "Not modified."}
PROBLEM_RESPONSES = {
    "400": ("MalformedBody", "The body is not JSON."),
    "401": ("Unauthorized", "Missing or invalid credentials."),
    "403": ("Forbidden", "The scope or permission is missing, or the object belongs to another tenant."),
    "404": ("NotFound", "The object does not exist, or it belongs to another tenant."),
    "409": ("Conflict", "The current state does not allow this."),
    "413": ("BodyTooLarge", "The body is too large."),
    "415": ("UnsupportedMediaType", "The body is not application/json."),
    "422": ("Invalid", "The request has invalid fields; `errors` lists them."),
    "429": ("TooManyRequests", "The token's rate limit is exceeded."),
    "500": ("InternalError", "Internal error."),
    "502": ("HandlerFailed", "The handler raised an error."),
    "503": ("Unavailable", "The database is unavailable, or no slot was free in time."),
    "504": ("HandlerTimedOut", "The handler ran too long."),
}
HEADERS = {"401": CHALLENGE, "429": RETRY_AFTER, "503": RETRY_AFTER}


class SchedulerApi(NinjaAPI):
    """A NinjaAPI with the scheduler's errors, paths and OpenAPI document.

    `decorator` wraps every view; the OpenAPI document also describes `other_api`.
    """

    def __init__(
        self, *, decorator: Callable[[View], View] | None = None, other_api: SchedulerApi | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.decorator, self.other_api = decorator, other_api
        for error in (Exception, AuthenticationError, ValidationError):  # ninja has its own handlers for the last two
            self.add_exception_handler(error, error_response)
        self.add_decorator(_reject_query_parameters)

    def patterns(self) -> list[URLPattern]:
        """Return all paths below the prefix, and one for the rest that raises 404 as a problem."""
        return [*self.paths(), *_docs_patterns(self), re_path("", handle_errors(_raise_not_found))]

    def paths(self) -> Iterator[URLPattern]:
        """Yield the path of each operation, with and without a trailing slash."""
        seen: set[str] = set()
        for router in self._get_bound_routers():
            for pattern in router.urls_paths(router.prefix):
                view = handle_errors(pattern.callback, self.decorator)
                route = str(pattern.pattern)
                yield path(route, view, name=pattern.name)
                if route not in seen and not route.endswith("/"):
                    yield path(f"{route}/", view)
                seen.add(route)

    def get_openapi_schema(self, *, path_prefix: str | None = None, path_params: Any = None) -> Any:
        document = super().get_openapi_schema(path_prefix=path_prefix, path_params=path_params)
        if self.other_api is not None:
            other = self.other_api.get_openapi_schema(path_prefix=(path_prefix or "").removesuffix("api/"))
            document["paths"] |= other["paths"]
            document["components"]["schemas"] |= other["components"]["schemas"]
        return _complete_document(document)

    def validation_error_from_error_contexts(self, error_contexts: list[ValidationErrorContext]) -> ValidationError:
        errors: list[dict[str, Any]] = []
        for context in error_contexts:
            source: str = context.model.__ninja_param_source__
            for error in context.pydantic_validation_error.errors(include_url=False, include_input=False):
                loc = [source, *error["loc"][1:]]  # the first step is the name of the view's argument
                cause = error.get("ctx", {}).get("error")
                if isinstance(cause, InvalidInput):
                    errors += [{**detail, "loc": [*loc, *detail["loc"]]} for detail in cause.errors]
                else:
                    message, error_type = STRUCTURE_ERRORS.get(error["type"], (error["msg"], error["type"]))
                    errors.append({"loc": loc, "msg": _(message), "type": error_type})
        return ValidationError(errors)


def handle_errors(view: View, decorator: Callable[[View], View] | None = None) -> View:
    """Return the view with problem documents for its exceptions.

    It runs outside of the host's transaction: each service opens its own, so that an error response leaves no change.
    """

    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        method = request.method
        try:
            reject_oversized_body(request)
            request.method = "GET" if method == "HEAD" else method  # the server omits the body
            try:
                response = view(request, *args, **kwargs)
            finally:
                request.method = method
            if response.status_code == 405:
                methods = {name.strip() for name in response["Allow"].split(",")}
                allowed = methods | ({"HEAD"} if "GET" in methods else set())
                raise MethodNotAllowed(", ".join(sorted(allowed)))
        except Exception as error:  # noqa: BLE001  the response to any exception is a problem document
            response = error_response(request, error)
        patch_vary_headers(response, VARY_HEADERS)
        return response

    decorated: Any = wrapped if decorator is None else decorator(wrapped)
    decorated.csrf_exempt = True  # `auth.Console` checks the CSRF token of sessions
    non_atomic: View = db.non_atomic(decorated)
    return non_atomic


def _raise_not_found(request: HttpRequest) -> HttpResponse:
    raise Http404


def _reject_query_parameters(view: View) -> View:
    """Return the view of an operation without query parameters so that it rejects all of them."""
    operation = getattr(view, "_ninja_operation", None)
    models = operation.models if operation is not None else ()
    if any(model.__ninja_param_source__ == "query" for model in models):
        return view

    @wraps(view)
    def wrapped(request: HttpRequest, **values: Any) -> Any:
        parse_query_string(request, ())
        return view(request, **values)

    return wrapped


def _docs_patterns(api: SchedulerApi) -> list[URLPattern]:
    def document(request: HttpRequest) -> HttpResponse:
        return etag_response(request, _build_document(api, _get_prefix(request, DOCUMENT_PATH)))

    def docs(request: HttpRequest) -> HttpResponseBase:
        return show_docs(request, api.title, _get_prefix(request, DOCS_PATH))

    pages = ((DOCUMENT_PATH, document, "openapi_json"), (DOCS_PATH, docs, "openapi_view"))
    views = [(route, handle_errors(require_safe(view)), name) for route, view, name in pages]
    asset = handle_errors(require_safe(send_asset))
    assets = [path(f"{DOCS_PATH}/{name}", asset, {"name": name}) for name in ASSETS.values()]
    return [
        *(page for route, view, name in views for page in (path(route, view, name=name), path(f"{route}/", view))),
        *assets,
    ]


def _complete_document(document: dict[str, Any]) -> dict[str, Any]:
    """Add to ninja's document the media type, the headers and the meaning of problem responses."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                _name_examples(parameter)
            responses = {str(status): response for status, response in operation["responses"].items()}
            operation["responses"] = {
                status: {**responses[status], "description": SUCCESS_DESCRIPTIONS[status]}
                if status in SUCCESS_DESCRIPTIONS
                else {"$ref": f"#/components/responses/{PROBLEM_RESPONSES[status][0]}"}
                for status in responses
            }
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    document["components"]["responses"] = {
        name: {"description": meaning, "content": content} | ({"headers": HEADERS[status]} if status in HEADERS else {})
        for status, (name, meaning) in PROBLEM_RESPONSES.items()
    }
    _remove_noise(document["components"]["schemas"])
    _remove_unused(document)
    return document


def _name_examples(parameter: dict[str, Any]) -> None:
    """Turn the list of examples, which ninja copies from the schema, into the map that a parameter must have."""
    if isinstance(values := parameter.get("examples"), list):
        parameter["examples"] = {f"example {number}": {"value": value} for number, value in enumerate(values, 1)}


def _remove_unused(document: dict[str, Any]) -> None:
    """Remove the schemas that no operation refers to: ninja adds one for each class of query parameters."""
    schemas = document["components"]["schemas"]
    used: set[str] = set()
    found = _find_references({**document, "components": {**document["components"], "schemas": {}}})
    while found:
        used |= found
        found = _find_references([schemas[name] for name in found]) - used
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in used}


def _find_references(part: Any) -> set[str]:
    """Return the names of the schemas that a part of the document refers to."""
    if isinstance(part, dict):
        reference = part.get("$ref")
        own = (
            {reference.removeprefix(SCHEMAS)} if isinstance(reference, str) and reference.startswith(SCHEMAS) else set()
        )
        return own.union(*map(_find_references, part.values()))
    return set().union(*map(_find_references, part)) if isinstance(part, list | tuple) else set()


def _remove_noise(part: Any) -> None:
    """Remove titles that repeat the field's name, and null as the default of optional fields."""
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        for schema in part["properties"].values():
            schema.pop("title", None)
            if "default" in schema and schema["default"] is None:
                del schema["default"]
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, dict | list):
            _remove_noise(inner)


@lru_cache(maxsize=8)
def _build_document(api: SchedulerApi, prefix: str) -> dict[str, Any]:
    document: dict[str, Any] = api.get_openapi_schema(path_prefix=prefix)
    return document


def _get_prefix(request: HttpRequest, name: str) -> str:
    """Return the prefix of the API in the path of this request."""
    return request.path.rstrip("/").removesuffix(name)
