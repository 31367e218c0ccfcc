"""Buttons on a page: each a POST of its own, with a permission of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse

from jobs.admin.showing import change_url
from jobs.errors import JobSchedulerError

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True)
class Verb:
    """`call` gets the admin, the request and the row; it may answer with a page of its own."""

    name: str
    button: StrPromise
    permission: str
    call: Callable[[Any, HttpRequest, Any], HttpResponse | None]


class Buttons(ModelAdmin):
    verbs: tuple[Verb, ...] = ()

    def offered(self, request: HttpRequest, row: Any) -> list[tuple[Verb, str]]:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_verb"
        return [
            (verb, reverse(name, args=[row.pk, verb.name], current_app=self.admin_site.name))
            for verb in self.verbs
            if self.may(request, verb)
        ]

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{verb.permission}")

    def verb_view(self, request: HttpRequest, object_id: str, verb: str) -> HttpResponse:
        known = {each.name: each for each in self.verbs}
        if verb not in known:
            raise Http404
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.may(request, known[verb])):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        try:
            page = known[verb].call(self, request, row)
        except JobSchedulerError as error:
            self.message_user(request, str(error), messages.ERROR)
            page = None
        return page or HttpResponseRedirect(change_url(self.admin_site, self.model, row.pk))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        return [path("<path:object_id>/verb/<slug:verb>/", view, name=name), *super().get_urls()]
