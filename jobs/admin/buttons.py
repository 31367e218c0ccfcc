"""Verbs on things that are no jobs: a button on their page and an action on their list, of one description.

Each takes its own permission and a POST; what is grave is shown on a page first, and done when a person agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from jobs import actors, db, parsing
from jobs.admin import console
from jobs.admin.forms import ReasonForm
from jobs.admin.reading import LeanAdmin
from jobs.admin.showing import change_url, isolated, list_url
from jobs.conf import conf
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.services import REASON_LENGTH

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

FEW, SAMPLE = 5, 10


@dataclass(frozen=True)
class Button:
    """`call(row, reason=…, actor=…)` goes through the services; `suits` says whether it makes sense for a row now.

    What is for `many` is an action on the list as well; `bulk(rows, actor=…)`, where there is one, does it to all of
    them at once and says to how many.
    """

    name: str
    label: StrPromise | str
    action: StrPromise | str
    done: Any  # how many, in a sentence
    permission: str
    call: Callable[..., object]
    suits: Callable[[Any], bool] = lambda row: True
    grave: bool = False
    many: bool = True
    bulk: Callable[..., int] | None = None
    silent: bool = False  # the service says nothing where there is nothing to do


def action_of(button: Button) -> Any:
    def run(self: ButtonAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        most = conf.CONSOLE_BULK_LIMIT
        found = list(queryset.order_by("pk")[: most + 1])
        rows = [row for row in found[:most] if not button.silent or button.suits(row)]
        if len(found) > most:
            self.message_user(request, _("Only the first %d were looked at; narrow the list.") % most, messages.WARNING)
        if idle := min(len(found), most) - len(rows):
            self.message_user(request, _("%d left as they were: nothing to do there.") % idle, messages.WARNING)
        return self.perform(request, button, rows, request.get_full_path()) if rows else None

    run.__name__ = button.name
    return admin.action(permissions=[button.name], description=button.action)(run)


def has(button: Button) -> Any:
    def has_permission(self: ButtonAdmin, request: HttpRequest) -> bool:
        return self.may(request, button)

    return has_permission


class ButtonAdmin(LeanAdmin):
    """A subclass names its `buttons`; what they came to, it may say more about (`told`) or show (`answer`)."""

    buttons: tuple[Button, ...] = ()
    action_form = ReasonForm
    change_form_template = "jobs/page_with_buttons.html"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "buttons" in cls.__dict__:
            cls.actions = [action_of(button) for button in cls.buttons if button.many]
            for button in cls.buttons:
                setattr(cls, f"has_{button.name}_permission", has(button))

    def may(self, request: HttpRequest, button: Button) -> bool:
        return request.user.has_perm(button.permission)

    def offered(self, request: HttpRequest, row: Any) -> list[tuple[Button, str]]:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_verb"
        return [
            (button, reverse(name, args=[row.pk, button.name], current_app=self.admin_site.name))
            for button in self.buttons
            if self.may(request, button) and button.suits(row)
        ]

    def perform(self, request: HttpRequest, button: Button, rows: Sequence[Any], url: str) -> HttpResponse | None:
        """Each row in its own transaction, so that one that cannot does not undo the others."""
        if button.grave and not request.POST.get("confirmed"):
            return self._ask(request, button, rows, url)
        try:
            said = request.POST.get("reason", "").strip()
            reason = parsing.text(said, "reason", max_length=REASON_LENGTH, allow_empty=True)
        except InvalidInput as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        if button.bulk is not None and len(rows) > 1:
            self._perform_bulk(request, button, rows, reason)
            return None
        done: list[Any] = []
        became: list[Any] = []
        refused: list[str] = []
        for row in rows:
            try:
                became.append(button.call(row, reason=reason, actor=actors.user(request.user)))
            except JobSchedulerError as error:
                refused.append(f"{row}: {error}")
            else:
                done.append(row)
        self._tell(request, button, len(done), refused, self.told(button, became))
        self._note(request, button, done, reason)
        return self.answer(request, button, became)

    def _perform_bulk(self, request: HttpRequest, button: Button, rows: Sequence[Any], reason: str) -> None:
        assert button.bulk is not None
        count = button.bulk(rows, actor=actors.user(request.user))
        left = [_("%d could not") % (len(rows) - count)] if count < len(rows) else []
        self._tell(request, button, count, left, "")
        self._note(request, button, rows, reason)

    def _note(self, request: HttpRequest, button: Button, done: Sequence[Any], reason: str) -> None:
        user_id: Any = request.user.pk
        entries: Any = done
        if done:
            LogEntry.objects.log_actions(
                user_id, entries, CHANGE, f"{button.name}: {reason}" if reason else button.name
            )

    def told(self, button: Button, became: list[Any]) -> Any:
        """What else there is to say about what it came to."""
        return ""

    def answer(self, request: HttpRequest, button: Button, became: list[Any]) -> HttpResponse | None:
        """A page of its own, where the page that one came from will not do."""
        return None

    @db.non_atomic
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, extra_context)

    @db.non_atomic
    def verb_view(self, request: HttpRequest, object_id: str, verb: str) -> HttpResponse:
        known = {button.name: button for button in self.buttons}
        if verb not in known:
            raise Http404
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.may(request, known[verb])):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404
        answer = self.perform(request, known[verb], [row], request.get_full_path())
        return answer or HttpResponseRedirect(self.after(row))

    def after(self, row: Any) -> str:
        """Where one is then; a row that went with the deed has no page any more."""
        if not self.model._base_manager.using(db.alias()).filter(pk=row.pk).exists():
            return list_url(self.admin_site, self.model)
        return change_url(self.admin_site, self.model, row.pk)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        more: dict[str, Any] = {}
        if row is not None:
            more = {"buttons": self.offered(request, row), **self.sections(request, row)}
            more["places"] = console.places(self.admin_site, request)
        return super().change_view(request, object_id, form_url, {**more, **(extra_context or {})})

    def sections(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What a page shows beside its fields."""
        return {}

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        return [path("<path:object_id>/verb/<slug:verb>/", view, name=name), *super().get_urls()]

    def _ask(self, request: HttpRequest, button: Button, rows: Sequence[Any], url: str) -> HttpResponse:
        keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
        across = request.POST.get("select_across", "0")
        repeated = [("action", button.name), ("select_across", across), ("index", "0")] if keys else []
        request.current_app = self.admin_site.name
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": button.label,
            "count": len(rows),
            "sample": [isolated(str(row)) for row in rows[:SAMPLE]],
            "hidden": [*repeated, *((ACTION_CHECKBOX_NAME, key) for key in keys)],
            "reason": request.POST.get("reason", "")[:REASON_LENGTH],
            "action_url": url,
            "back": list_url(self.admin_site, self.model) if keys or not rows else self.after(rows[0]),
            "media": self.media,
        }
        return TemplateResponse(request, "jobs/console/agree.html", context)

    def _tell(self, request: HttpRequest, button: Button, count: int, refused: list[str], more: Any) -> None:
        told = ". ".join([str(button.done % {"count": count}), *refused[:FEW]])
        if len(refused) > FEW:
            told += ". " + _("%d more could not") % (len(refused) - FEW)
        sentence = format_html("{}. {}", told.rstrip("."), more) if more else told.rstrip(".") + "."
        self.message_user(request, sentence, messages.WARNING if refused else messages.SUCCESS)
