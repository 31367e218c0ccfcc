"""The NinjaAPI of the scheduler: its errors are problems, its paths answer with and without a slash, wherever it is
included, and its OpenAPI document, right under whatever prefix it is asked for, names every status.
"""

from __future__ import annotations

import json
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
from ninja.openapi.docs import Swagger, render_template

from jobs import db
from jobs.api.problems import PROBLEM, MethodNotAllowed, answer_to
from jobs.api.request_params import parameters
from jobs.api.responses import tagged
from jobs.errors import InvalidInput

View = Callable[..., HttpResponseBase]
CREDENTIALS = ("Authorization", "X-API-Key", "Cookie", "Accept-Language")
# Pydantic judges only which fields there are; these are our words for it.
STRUCTURE = {
    "model_type": (gettext_noop("must be an object"), "dict_type"),
    "model_attributes_type": (gettext_noop("must be an object"), "dict_type"),
    "extra_forbidden": (gettext_noop("is not a field here"), "extra_forbidden"),
    "missing": (gettext_noop("is missing"), "missing"),
}
DOCUMENT, PAGE = "openapi.json", "docs"
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
CHALLENGE = {"WWW-Authenticate": {"schema": {"type": "string"}}}
DONE = {"200": "Done.", "201": "Made.", "204": "Gone.", "304": "Still as you have it."}
REFUSED = {
    "400": ("MalformedBody", "The body is not JSON."),
    "401": ("Unauthorized", "No credentials, or bad ones."),
    "403": ("Forbidden", "The scope or permission for this is missing, or it is another tenant's."),
    "404": ("NotFound", "There is no such object, or it is another tenant's."),
    "409": ("Conflict", "Not in this state."),
    "413": ("BodyTooLarge", "The body is too large."),
    "415": ("UnsupportedMediaType", "The body is not application/json."),
    "422": ("Invalid", "Something in the request makes no sense; `errors` says what."),
    "429": ("TooManyRequests", "The token's rate limit is used up."),
    "500": ("InternalError", "Something went wrong on our side."),
    "502": ("HandlerFailed", "The handler raised an error."),
    "503": ("Unavailable", "The database does not answer, or there was no room in time."),
}
HEADERS = {"401": CHALLENGE, "429": RETRY_AFTER, "503": RETRY_AFTER}


class SchedulerApi(NinjaAPI):
    """`outermost` wraps every view; `beside` is another surface that the same OpenAPI document describes."""

    def __init__(
        self, *, outermost: Callable[[View], View] | None = None, beside: SchedulerApi | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.outermost, self.beside = outermost, beside
        for kind in (Exception, AuthenticationError, ValidationError):  # ninja has handlers of its own for these two
            self.add_exception_handler(kind, answer_to)
        self.add_decorator(_without_stray_parameters)

    def patterns(self) -> list[URLPattern]:
        """All paths below the prefix, and a 404 of our own for whatever else is asked there."""
        described = [path(str(each.pattern), guarded(each.callback), name=each.name) for each in _pages(self)]
        return [*self.paths(), *described, re_path("", guarded(_absent))]

    def paths(self) -> Iterator[URLPattern]:
        seen: set[str] = set()
        for router in self._get_bound_routers():
            for each in router.urls_paths(router.prefix):
                view = guarded(each.callback, self.outermost)
                route = str(each.pattern)
                yield path(route, view, name=each.name)
                if route not in seen and not route.endswith("/"):
                    yield path(f"{route}/", view)
                seen.add(route)

    def get_openapi_schema(self, *, path_prefix: str | None = None, path_params: Any = None) -> Any:
        document = super().get_openapi_schema(path_prefix=path_prefix, path_params=path_params)
        if self.beside is not None:
            other = self.beside.get_openapi_schema(path_prefix=(path_prefix or "").removesuffix("api/"))
            document["paths"] |= other["paths"]
            document["components"]["schemas"] |= other["components"]["schemas"]
        return _completed(document)

    def validation_error_from_error_contexts(self, error_contexts: list[ValidationErrorContext]) -> ValidationError:
        found: list[dict[str, Any]] = []
        for context in error_contexts:
            place: str = context.model.__ninja_param_source__
            for error in context.pydantic_validation_error.errors(include_url=False, include_input=False):
                loc = [place, *error["loc"][1:]]  # the first step is the name of our own argument
                cause = error.get("ctx", {}).get("error")
                if isinstance(cause, InvalidInput):
                    found += [{**each, "loc": [*loc, *each["loc"]]} for each in cause.errors]
                else:
                    message, kind = STRUCTURE.get(error["type"], (error["msg"], error["type"]))
                    found.append({"loc": loc, "msg": _(message), "type": kind})
        return ValidationError(found)


def guarded(view: View, outermost: Callable[[View], View] | None = None) -> View:
    """Outside of any transaction of the host's: each service makes its own, and an error answer leaves nothing."""

    @wraps(view)
    def answering(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        method = request.method
        try:
            request.method = "GET" if method == "HEAD" else method  # the server leaves the body out
            try:
                response = view(request, *args, **kwargs)
            finally:
                request.method = method
            if response.status_code == 405:
                methods = {name.strip() for name in response["Allow"].split(",")}
                allowed = methods | ({"HEAD"} if "GET" in methods else set())
                raise MethodNotAllowed(", ".join(sorted(allowed)))
        except Exception as error:  # noqa: BLE001  whatever it is, the answer is a problem document
            response = answer_to(request, error)
        patch_vary_headers(response, CREDENTIALS)
        return response

    answer: Any = answering if outermost is None else outermost(answering)
    answer.csrf_exempt = True  # sessions are asked for it by `auth.Console`
    apart: View = db.non_atomic(answer)
    return apart


def _absent(request: HttpRequest) -> HttpResponse:
    raise Http404


def _without_stray_parameters(view: View) -> View:
    """An operation that asks nothing of the query string takes nothing there."""
    operation = getattr(view, "_ninja_operation", None)
    models = operation.models if operation is not None else ()
    if any(model.__ninja_param_source__ == "query" for model in models):
        return view

    @wraps(view)
    def strict(request: HttpRequest, **values: Any) -> Any:
        parameters(request, ())
        return view(request, **values)

    return strict


def _pages(api: SchedulerApi) -> list[URLPattern]:
    def document(request: HttpRequest) -> HttpResponse:
        return tagged(request, _described(api, _prefix(request, DOCUMENT)))

    def page(request: HttpRequest) -> HttpResponse:
        settings = {**Swagger.default_settings, "url": _prefix(request, PAGE) + DOCUMENT}
        inert = json.dumps(settings).replace("<", "\\u003c")  # it stands in a script
        context = {"swagger_settings": inert, "api": api, "add_csrf": True}
        return render_template(request, Swagger.template, Swagger.template_cdn, context)

    return [
        path(DOCUMENT, require_safe(document), name="openapi_json"),
        path(f"{DOCUMENT}/", require_safe(document)),
        path(PAGE, require_safe(page), name="openapi_view"),
        path(f"{PAGE}/", require_safe(page)),
    ]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """What ninja does not say: that refusals have a media type of their own, their headers, and what each means."""
    for methods in document["paths"].values():
        for operation in methods.values():
            answers = {str(status): each for status, each in operation["responses"].items()}
            operation["responses"] = {
                status: {**answers[status], "description": DONE[status]}
                if status in DONE
                else {"$ref": f"#/components/responses/{REFUSED[status][0]}"}
                for status in answers
            }
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    document["components"]["responses"] = {
        name: {"description": meaning, "content": content} | ({"headers": HEADERS[status]} if status in HEADERS else {})
        for status, (name, meaning) in REFUSED.items()
    }
    _without_noise(document["components"]["schemas"])
    return document


def _without_noise(part: Any) -> None:
    """Titles that repeat the name, and defaults of null for what may be left out."""
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        for each in part["properties"].values():
            each.pop("title", None)
            if "default" in each and each["default"] is None:
                del each["default"]
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, dict | list):
            _without_noise(inner)


@lru_cache(maxsize=8)
def _described(api: SchedulerApi, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get_openapi_schema(path_prefix=prefix)
    return found


def _prefix(request: HttpRequest, name: str) -> str:
    """Where the API is, as this request reached it."""
    return request.path.rstrip("/").removesuffix(name)
