"""The NinjaAPI of the scheduler: its errors are problems, its paths answer with and without a slash, wherever it is
included, and its OpenAPI names every status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, re_path
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, ValidationError, ValidationErrorContext

from jobs import db
from jobs.api import openapi, problems
from jobs.api.queries import parameters
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


class SchedulerApi(NinjaAPI):
    """`outermost` wraps every view; `beside` is another surface that the same OpenAPI document describes."""

    def __init__(
        self, *, outermost: Callable[[View], View] | None = None, beside: SchedulerApi | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.outermost, self.beside = outermost, beside
        self.add_exception_handler(Exception, lambda request, error: problems.answer_to(request, error))
        self.add_exception_handler(AuthenticationError, lambda request, error: _unauthorized(request))
        self.add_exception_handler(ValidationError, lambda request, error: problems.answer_to(request, _invalid(error)))
        self.add_decorator(_without_stray_parameters)

    def patterns(self) -> list[URLPattern]:
        """All paths below the prefix, and a 404 of our own for whatever else is asked there."""
        described = [path(str(each.pattern), guarded(each.callback), name=each.name) for each in openapi.patterns(self)]
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
            openapi.add(document, self.beside, (path_prefix or "").removesuffix("api/"))
        return openapi.completed(document)

    def validation_error_from_error_contexts(self, error_contexts: list[ValidationErrorContext]) -> ValidationError:
        found: list[dict[str, Any]] = []
        for context in error_contexts:
            place: str = context.model.__ninja_param_source__
            for each in context.pydantic_validation_error.errors(include_url=False, include_input=False):
                # The first step is the name of our own argument.
                found += _told([place, *each["loc"][1:]], each)
        return ValidationError(found)


def _told(loc: list[Any], error: Any) -> list[dict[str, Any]]:
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InvalidInput):
        return [{**each, "loc": [*loc, *each["loc"]]} for each in cause.errors]
    message, kind = STRUCTURE.get(error["type"], (error["msg"], error["type"]))
    return [{"loc": loc, "msg": _(message), "type": kind}]


def _invalid(error: Any) -> InvalidInput:
    return InvalidInput.of(error.errors)


def _unauthorized(request: HttpRequest) -> HttpResponse:
    detail = _("Send a token as “Authorization: Bearer …”, or sign in to the console.")
    return problems.answer_to(request, problems.Unauthorized(detail))


def guarded(view: View, outermost: Callable[[View], View] | None = None) -> View:
    """Outside of any transaction of the host's: each service makes its own, and an error answer leaves nothing."""

    @wraps(view)
    def answering(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            response = _answering_head(view)(request, *args, **kwargs)
            if response.status_code == 405:
                raise problems.MethodNotAllowed(_with_head(response["Allow"]))
        except Exception as error:  # noqa: BLE001  whatever it is, the answer is a problem document
            response = problems.answer_to(request, error)
        patch_vary_headers(response, CREDENTIALS)
        return response

    answer: Any = answering if outermost is None else outermost(answering)
    answer.csrf_exempt = True  # sessions are asked for it by `auth.Console`
    apart: View = db.non_atomic(answer)
    return apart


def _answering_head(view: View) -> View:
    """A HEAD is answered like a GET; the server leaves the body out."""

    def view_of_get(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        asked, request.method = request.method, "GET" if request.method == "HEAD" else request.method
        try:
            return view(request, *args, **kwargs)
        finally:
            request.method = asked

    return view_of_get


def _with_head(allowed: str) -> str:
    methods = {each.strip() for each in allowed.split(",")}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


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
