"""The verbs of schedules in the console: actions on a selection, and buttons on a schedule's page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy, pgettext_lazy

from jobs import actors, db
from jobs.admin.forms import ReasonForm
from jobs.admin.reading import LeanAdmin
from jobs.admin.showing import change_url, link
from jobs.conf import conf
from jobs.errors import JobSchedulerError
from jobs.models import Job
from schedules import services
from schedules.models import Schedule

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

FEW = 5


@dataclass(frozen=True)
class Verb:
    """`name` is also the permission: name_schedule."""

    name: str
    button: StrPromise
    action: StrPromise
    done: Any
    call: Callable[..., Schedule | Job]


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "trigger",
            pgettext_lazy("verb", "Trigger now"),
            gettext_lazy("Trigger selected schedules now"),
            ngettext_lazy("%(count)d schedule triggered", "%(count)d schedules triggered", "count"),
            services.trigger,
        ),
        Verb(
            "skip",
            pgettext_lazy("verb", "Skip the next fire"),
            gettext_lazy("Skip the next fire of selected schedules"),
            ngettext_lazy("%(count)d schedule skips a fire", "%(count)d schedules skip a fire", "count"),
            services.skip_next,
        ),
        Verb(
            "enable",
            pgettext_lazy("verb", "Enable"),
            gettext_lazy("Enable selected schedules"),
            ngettext_lazy("%(count)d schedule enabled", "%(count)d schedules enabled", "count"),
            services.enable,
        ),
        Verb(
            "disable",
            pgettext_lazy("verb", "Disable"),
            gettext_lazy("Disable selected schedules"),
            ngettext_lazy("%(count)d schedule disabled", "%(count)d schedules disabled", "count"),
            services.disable,
        ),
    )
}


def offered(schedule: Schedule) -> list[Verb]:
    """The verbs that make sense for it now."""
    senseless = {"enable"} if schedule.enabled else {"disable", "skip"}
    if schedule.next_fire_at is None:
        senseless.add("skip")
    return [verb for name, verb in VERBS.items() if name not in senseless]


def _action(verb: Verb) -> Any:
    def run(self: ScheduleVerbs, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self.perform(request, verb, queryset)

    run.__name__ = verb.name
    return admin.action(permissions=[verb.name], description=verb.action)(run)


def _permission(verb: str) -> Any:
    def has_permission(self: ScheduleVerbs, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{verb}_schedule")

    return has_permission


class ScheduleVerbs(LeanAdmin):
    """Each verb takes its own permission, and goes through the services with the user as its actor."""

    actions = [_action(verb) for verb in VERBS.values()]
    action_form = ReasonForm

    has_trigger_permission = _permission("trigger")
    has_skip_permission = _permission("skip")
    has_enable_permission = _permission("enable")
    has_disable_permission = _permission("disable")

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        return bool(getattr(self, f"has_{verb.name}_permission")(request))

    def perform(self, request: HttpRequest, verb: Verb, queryset: QuerySet[Schedule]) -> None:
        """Each schedule in its own transaction, so that one that cannot does not undo the others."""
        done: list[Schedule] = []
        made: list[Job] = []
        refused: list[str] = []
        reason = request.POST.get("reason", "").strip()
        for schedule in queryset.order_by("pk")[: conf.CONSOLE_BULK_LIMIT]:
            try:
                became = verb.call(schedule.pk, reason=reason, actor=actors.user(request.user))
            except JobSchedulerError as error:
                refused.append(f"{schedule.name}: {error}")
                continue
            done.append(schedule)
            made += [became] if isinstance(became, Job) else []
        self._tell(request, verb, done, made, refused)
        if done:
            user_id: Any = request.user.pk
            listed: Any = done
            LogEntry.objects.log_actions(user_id, listed, CHANGE, f"{verb.name}: {reason}" if reason else verb.name)

    @db.non_atomic
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, extra_context)

    @db.non_atomic
    def verb_view(self, request: HttpRequest, object_id: str, verb: str) -> HttpResponse:
        if verb not in VERBS:
            raise Http404
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not (self.has_view_permission(request) and self.may(request, VERBS[verb])):
            raise PermissionDenied
        schedule = self.get_object(request, unquote(object_id))
        if schedule is None:
            raise Http404
        self.perform(request, VERBS[verb], Schedule.objects.filter(pk=schedule.pk))
        return HttpResponseRedirect(change_url(self.admin_site, Schedule, schedule.pk))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        return [path("<path:object_id>/verb/<slug:verb>/", view, name=name), *super().get_urls()]

    def _tell(
        self, request: HttpRequest, verb: Verb, done: list[Schedule], made: list[Job], refused: list[str]
    ) -> None:
        told = ", ".join([str(verb.done % {"count": len(done)}), *refused[:FEW]]) + "."
        if len(made) == 1:
            told = format_html("{} {} {}", told, _("It made"), link(self.admin_site, Job, made[0].pk))
        self.message_user(request, told, messages.WARNING if refused else messages.SUCCESS)
