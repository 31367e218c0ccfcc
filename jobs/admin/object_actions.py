"""Actions on rows other than jobs: one description gives a button on the row's page and an action of the list.

Each requires its own permission and a POST. An action with `needs_confirmation` shows a confirmation page first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import label_for_field, unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import actors, db
from jobs.admin import screens
from jobs.admin.base import ActionAdmin, log_history
from jobs.admin.columns import change_url, list_url
from jobs.admin.formatting import isolate_text
from jobs.admin.forms import ReasonForm
from jobs.conf import conf
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.services.jobs import REASON_LENGTH
from jobs.validation import fields

REFUSALS_SHOWN, SAMPLE_SIZE = 5, 10


@dataclass(frozen=True)
class BulkResult:
    """How many rows were changed, sentences on those that were not, and a note on those that were."""

    count: int
    refusals: list[str]
    note: str = ""


@dataclass(frozen=True)
class ObjectAction:
    """An action on rows of a model, and how the admin offers it.

    `call(row, reason=…, actor=…)` goes through the services. `bulk(rows, actor=…)`, if given, replaces it for more than
    one row.
    """

    name: str
    label: Promise | str  # of the button
    list_label: Promise | str
    done_text: Any  # a sentence with %(count)d
    permission: str
    call: Callable[..., object]
    is_applicable: Callable[[Any], bool] = lambda row: True
    needs_confirmation: bool = False
    in_list: bool = True
    bulk: Callable[..., BulkResult] | None = None
    skip_inapplicable: bool = False  # for a service that does not report that it had nothing to do
    title: Promise | str = ""  # of the button: what it does


def call_with_key(service: Callable[..., Any], *, with_reason: bool = True) -> Callable[..., Any]:
    """Return an action's `call` for a service that takes a row's key, an actor and usually a reason."""
    if with_reason:
        return lambda row, *, reason, actor: service(row.pk, reason=reason, actor=actor)
    return lambda row, *, reason, actor: service(row.pk, actor=actor)


class ObjectActionAdmin(ActionAdmin):
    """A subclass sets `object_actions`; it may add to the report (`result_note`) or replace it (`result_page`).

    `fact_fields` names the columns that a row's page shows as facts above its form, if it has one.
    """

    object_actions: tuple[ObjectAction, ...] = ()
    action_form = ReasonForm
    change_form_template = "jobs/page_with_buttons.html"
    fact_fields: tuple[str, ...] = ()

    def run_on_selection(
        self, request: HttpRequest, action: ObjectAction, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        limit = conf.CONSOLE_BULK_LIMIT
        selected = list(queryset.order_by("pk")[: limit + 1])
        permitted = [row for row in selected[:limit] if self.can_run_on(request, action, row)]
        if refused := min(len(selected), limit) - len(permitted):
            text = ngettext("%d skipped: you need a permission for it.", "%d skipped: you need a permission.", refused)
            self.message_user(request, text % refused, messages.WARNING)
        rows = [row for row in permitted if not action.skip_inapplicable or action.is_applicable(row)]
        if len(selected) > limit:
            message = _("Only the first %d were processed; add a filter.") % limit
            self.message_user(request, message, messages.WARNING)
        if skipped := len(permitted) - len(rows):
            self.message_user(request, _("%d unchanged: nothing to do.") % skipped, messages.WARNING)
        return self.run_action(request, action, rows) if rows else None

    def run_action(self, request: HttpRequest, action: ObjectAction, rows: Sequence[Any]) -> HttpResponse | None:
        """Run the action on each row in its own transaction, so that a refusal does not undo the others."""
        if action.needs_confirmation and not request.POST.get("confirmed"):
            return self._confirmation_page(request, action, rows)
        try:
            text = request.POST.get("reason", "").strip()
            reason = fields.parse_text(text, "reason", max_length=REASON_LENGTH, allow_empty=True)
        except InvalidInput as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        log_message = f"{action.name}: {reason}" if reason else action.name
        if action.bulk is not None and len(rows) > 1:
            result = action.bulk(rows, actor=actors.make_user_actor(request.user))
            self._report_result(request, action, result.count, result.refusals, result.note)
            log_history(request, rows, log_message)
            return None
        changed: list[Any] = []
        results: list[Any] = []
        refusals = []
        for row in rows:
            try:
                results.append(action.call(row, reason=reason, actor=actors.make_user_actor(request.user)))
                changed.append(row)
            except JobSchedulerError as error:
                refusals.append(f"{row}: {error}")
        self._report_result(request, action, len(changed), refusals, self.result_note(action, results))
        log_history(request, changed, log_message)
        return self.result_page(request, action, results)

    def result_note(self, action: ObjectAction, results: list[Any]) -> Any:
        """Return what to append to the report; `results` are the return values of the service."""
        return ""

    def result_page(self, request: HttpRequest, action: ObjectAction, results: list[Any]) -> HttpResponse | None:
        """Return a page that shows the results; None to return to the list or the row's page."""
        return None

    def can_run_on(self, request: HttpRequest, action: ObjectAction, row: Any) -> bool:
        """Return whether a user with the action's permission may run it on this row."""
        return True

    def run_on_object(self, request: HttpRequest, action: ObjectAction, row: Any) -> HttpResponse:
        if not self.can_run_on(request, action, row):
            raise PermissionDenied
        response = self.run_action(request, action, [row])
        return response or HttpResponseRedirect(self.redirect_url(row))

    def redirect_url(self, row: Any) -> str:
        """Return the row's page, or the list if the action deleted the row."""
        if not self.model._base_manager.using(db.alias()).filter(pk=row.pk).exists():
            return list_url(self.admin_site, self.model)
        return change_url(self.admin_site, self.model, row.pk)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        show = super().change_view
        if row is None:
            return show(request, object_id, form_url, extra_context)

        def build(shared: dict[str, Any]) -> HttpResponse:
            available_actions = [
                action
                for action in self.object_actions
                if self.can_run(request, action) and self.can_run_on(request, action, row) and action.is_applicable(row)
            ]
            context = {
                "buttons": [(action, self.action_url(row, action.name)) for action in available_actions],
                **self.page_context(request, row),
                **shared,
            }
            return show(request, object_id, form_url, {**context, **(extra_context or {})})

        is_shown = request.method == "GET" and self.has_view_permission(request, row)
        version = self.page_version(request, row) if is_shown else ""
        return screens.live_page(self.admin_site, request, version, build)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return further context of the row's page."""
        return {}

    def page_version(self, request: HttpRequest, row: Any) -> str:
        """Return a string that changes with the row's page, see `screens.live_page`; "" for a page without refresh."""
        return ""

    def list_facts(self, row: Any) -> list[tuple[str, Any]]:
        """Return the label and the value of each of `fact_fields`."""
        return [(str(label_for_field(name, self.model, self)), getattr(self, name)(row)) for name in self.fact_fields]

    def _confirmation_page(self, request: HttpRequest, action: ObjectAction, rows: Sequence[Any]) -> HttpResponse:
        keys = request.POST.getlist(ACTION_CHECKBOX_NAME)
        select_across = request.POST.get("select_across", "0")
        list_fields = [("action", action.name), ("select_across", select_across), ("index", "0")] if keys else []
        context = {
            "count": len(rows),
            "sample": [isolate_text(str(row)) for row in rows[:SAMPLE_SIZE]],
            "hidden": [*list_fields, *((ACTION_CHECKBOX_NAME, key) for key in keys)],
            "reason": request.POST.get("reason", "")[:REASON_LENGTH],
            "action_url": request.get_full_path(),
            "back": list_url(self.admin_site, self.model) if keys or not rows else self.redirect_url(rows[0]),
            "media": self.media,
        }
        return screens.render(self, request, "jobs/console/agree.html", context, title=action.label)

    def _report_result(
        self, request: HttpRequest, action: ObjectAction, count: int, refusals: list[str], note: Any
    ) -> None:
        report = ". ".join([str(action.done_text % {"count": count}), *refusals[:REFUSALS_SHOWN]])
        if len(refusals) > REFUSALS_SHOWN:
            report += ". " + _("%d more failed") % (len(refusals) - REFUSALS_SHOWN)
        message = format_html("{}. {}", report.rstrip("."), note) if note else report.rstrip(".") + "."
        self.message_user(request, message, messages.WARNING if refusals else messages.SUCCESS)


class ServiceBackedAdmin(ObjectActionAdmin):
    """Base of the admins that write through the services instead of the model."""

    delete_service: Callable[..., object]  # takes a key and an actor; a subclass sets it as a staticmethod

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """Make the tenant of a stored row read-only."""
        return (*self.readonly_fields, *(() if obj is None else ("tenant",)))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.delete_service(obj.pk, actor=actors.make_user_actor(request.user))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for key in list(queryset.values_list("pk", flat=True)):
            self.delete_service(key, actor=actors.make_user_actor(request.user))

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the refusal of a row that is in use as a message."""
        try:
            return super().delete_view(request, *args, **kwargs)
        except JobSchedulerError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    @db.non_atomic
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Same, for the rows that a list deletes or edits."""
        try:
            return super().changelist_view(request, extra_context)
        except JobSchedulerError as error:
            if request.method != "POST":
                raise
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, Any]:
        """List only the rows themselves: a million dependent rows may be deleted with them."""
        names = [isolate_text(str(row)) for row in objs]
        missing_permissions = set() if self.has_delete_permission(request) else {str(self.opts.verbose_name)}
        return names, {str(self.opts.verbose_name_plural): len(names)}, missing_permissions, []

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show errors that the form could not foresee, such as conflicts with another request, as a message."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except JobSchedulerError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
