"""Verbs on things that are no jobs: a button on their page and an action on their list, of one description.

Each takes its own permission and a POST; what is grave is shown on a page first, and done when a person agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _

from jobs import actors, db
from jobs.admin import screens
from jobs.admin.base import VerbAdmin, log_history
from jobs.admin.formatting import change_url, isolated, list_url
from jobs.admin.forms import ReasonForm
from jobs.conf import conf
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.services.jobs import REASON_LENGTH
from jobs.validation import fields

FEW, SAMPLE = 5, 10


@dataclass(frozen=True)
class Button:
    """`call(row, reason=…, actor=…)` goes through the services; `suits` says whether it makes sense for a row now.

    What is for `many` is an action on the list as well; `bulk(rows, actor=…)`, where there is one, does it to all of
    them at once and says to how many.
    """

    name: str
    label: Promise | str
    action: Promise | str
    done: Any  # how many, in a sentence
    permission: str
    call: Callable[..., object]
    suits: Callable[[Any], bool] = lambda row: True
    grave: bool = False
    many: bool = True
    bulk: Callable[..., int] | None = None
    silent: bool = False  # the service says nothing where there is nothing to do


def by_key(service: Callable[..., Any], *, with_reason: bool = True) -> Callable[..., Any]:
    """A button's `call` for a service that takes a row's key, an actor and mostly a reason."""
    if with_reason:
        return lambda row, *, reason, actor: service(row.pk, reason=reason, actor=actor)
    return lambda row, *, reason, actor: service(row.pk, actor=actor)


class ButtonAdmin(VerbAdmin):
    """A subclass names its `buttons`; what they came to, it may say more about (`told`) or show (`answer`)."""

    buttons: tuple[Button, ...] = ()
    action_form = ReasonForm
    change_form_template = "jobs/page_with_buttons.html"

    def act(self, request: HttpRequest, verb: Button, queryset: QuerySet[Any]) -> HttpResponse | None:
        limit = conf.CONSOLE_BULK_LIMIT
        found = list(queryset.order_by("pk")[: limit + 1])
        rows = [row for row in found[:limit] if not verb.silent or verb.suits(row)]
        if len(found) > limit:
            message = _("Only the first %d were looked at; narrow the list.") % limit
            self.message_user(request, message, messages.WARNING)
        if idle := min(len(found), limit) - len(rows):
            self.message_user(request, _("%d left as they were: nothing to do there.") % idle, messages.WARNING)
        return self.perform(request, verb, rows) if rows else None

    def perform(self, request: HttpRequest, button: Button, rows: Sequence[Any]) -> HttpResponse | None:
        """Each row in its own transaction, so that one that cannot does not undo the others."""
        if button.grave and not request.POST.get("confirmed"):
            return self._ask(request, button, rows)
        try:
            text = request.POST.get("reason", "").strip()
            reason = fields.parse_text(text, "reason", max_length=REASON_LENGTH, allow_empty=True)
        except InvalidInput as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        message = f"{button.name}: {reason}" if reason else button.name
        if button.bulk is not None and len(rows) > 1:
            count = button.bulk(rows, actor=actors.user(request.user))
            left = [_("%d could not") % (len(rows) - count)] if count < len(rows) else []
            self._tell(request, button, count, left, "")
            log_history(request, rows, message)
            return None
        done: list[Any] = []
        became: list[Any] = []
        refused: list[str] = []
        for row in rows:
            try:
                became.append(button.call(row, reason=reason, actor=actors.user(request.user)))
                done.append(row)
            except JobSchedulerError as error:
                refused.append(f"{row}: {error}")
        self._tell(request, button, len(done), refused, self.told(button, became))
        log_history(request, done, message)
        return self.answer(request, button, became)

    def told(self, button: Button, became: list[Any]) -> Any:
        """What else there is to say about what it came to."""
        return ""

    def answer(self, request: HttpRequest, button: Button, became: list[Any]) -> HttpResponse | None:
        """A page of its own, where the page that one came from will not do."""
        return None

    def perform_one(self, request: HttpRequest, verb: Button, row: Any) -> HttpResponse:
        answer = self.perform(request, verb, [row])
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
            offered = [each for each in self.buttons if self.may(request, each) and each.suits(row)]
            more = {"buttons": [(button, self.verb_url(row, button.name)) for button in offered]}
            more |= {**self.sections(request, row), "places": screens.places(self.admin_site, request)}
        return super().change_view(request, object_id, form_url, {**more, **(extra_context or {})})

    def sections(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What a page shows beside its fields."""
        return {}

    def _ask(self, request: HttpRequest, button: Button, rows: Sequence[Any]) -> HttpResponse:
        keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
        across = request.POST.get("select_across", "0")
        repeated = [("action", button.name), ("select_across", across), ("index", "0")] if keys else []
        context = {
            "count": len(rows),
            "sample": [isolated(str(row)) for row in rows[:SAMPLE]],
            "hidden": [*repeated, *((ACTION_CHECKBOX_NAME, key) for key in keys)],
            "reason": request.POST.get("reason", "")[:REASON_LENGTH],
            "action_url": request.get_full_path(),
            "back": list_url(self.admin_site, self.model) if keys or not rows else self.after(rows[0]),
            "media": self.media,
        }
        return screens.render(self, request, "jobs/console/agree.html", context, title=button.label)

    def _tell(self, request: HttpRequest, button: Button, count: int, refused: list[str], more: Any) -> None:
        told = ". ".join([str(button.done % {"count": count}), *refused[:FEW]])
        if len(refused) > FEW:
            told += ". " + _("%d more could not") % (len(refused) - FEW)
        sentence = format_html("{}. {}", told.rstrip("."), more) if more else told.rstrip(".") + "."
        self.message_user(request, sentence, messages.WARNING if refused else messages.SUCCESS)


class ServedAdmin(ButtonAdmin):
    delete_by: Callable[..., object]  # of the services: takes a key and an actor; a subclass says it as a staticmethod

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.delete_by(obj.pk, actor=actors.user(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for key in list(queryset.values_list("pk", flat=True)):
            self.delete_by(key, actor=actors.user(request.user))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """What goes with a row may be a million rows: nobody wants them listed one by one."""
        listed = [isolated(str(row)) for row in objs]
        missing = set() if self.has_delete_permission(request) else {str(self.opts.verbose_name)}
        return listed, {str(self.opts.verbose_name_plural): len(listed)}, missing, []

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """What only the service can know, or what another request did meanwhile, may still refuse."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except JobSchedulerError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
