"""The verbs in the admin: actions on a selection, which show first what they would do, and buttons on a job's page."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.translation import gettext as _

from jobs import actors, parsing, services
from jobs.actors import Actor
from jobs.admin import console
from jobs.admin.actions import PRIORITY, VERBS, Tally, Verb, carry_out, chosen, forecast
from jobs.admin.base import StateAdmin, VerbAdmin, log_history
from jobs.admin.formatting import change_url, link, list_url
from jobs.admin.forms import DryRunForm
from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.models import Job

CHUNK = 500
GRAVE = ("cancel", "resolve", "retry")  # what cannot be taken back; a retry of one job is one more job, and no matter


def _action(verb: Verb) -> Any:
    def run(self: JobVerbs, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self.act(request, verb, queryset)

    run.__name__ = verb.name
    return admin.action(permissions=[verb.name], description=verb.action)(run)


def _permission(verb: str) -> Any:
    def has_permission(self: JobVerbs, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{verb}_job")

    return has_permission


class JobVerbs(VerbAdmin, StateAdmin):
    """Each verb takes its own permission, and goes through the services with the user as its actor."""

    actions = [_action(verb) for verb in (*VERBS.values(), PRIORITY)]
    action_form = DryRunForm
    has_screens = True

    has_release_permission = _permission("release")
    has_pause_permission = _permission("pause")
    has_resume_permission = _permission("resume")
    has_retry_permission = _permission("retry")
    has_resolve_permission = _permission("resolve")
    has_cancel_permission = _permission("cancel")
    has_change_priority_permission = _permission("reorder")

    def verbs(self) -> dict[str, Verb]:
        return VERBS

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        return bool(getattr(self, f"has_{verb.name}_permission")(request))

    def act(self, request: HttpRequest, verb: Verb, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Do it, or first show what it would do."""
        jobs, left = chosen(meant(request, queryset), conf.CONSOLE_BULK_LIMIT)
        if not is_agreed(request, verb, len(jobs)):
            return self.confirmation(request, verb, jobs, left)
        if verb is PRIORITY:
            try:
                verb = with_priority(request, verb)
            except InvalidInput as error:
                return self.confirmation(request, verb, jobs, left, error.errors[0]["msg"])
        self.perform(request, verb, jobs, left)
        return None

    def confirmation(
        self, request: HttpRequest, verb: Verb, jobs: list[Job], left: int, error: str = ""
    ) -> HttpResponse:
        """A page with the dry run's sentence, a sample, and the form that does it."""
        foreseen = forecast(verb, [job.pk for job in jobs])
        foreseen.left = left
        across = is_across(request)
        # What the list's own form said: who chose all that match names one of them, as the list does.
        keys = [(ACTION_CHECKBOX_NAME, job.pk) for job in (jobs[:1] if across else jobs)]
        context = {
            "forecast": foreseen,
            "across": across,
            "limit": conf.CONSOLE_BULK_LIMIT,
            "sample": [(link(self.admin_site, Job, job.pk), job) for job in foreseen.sample],
            "hidden": [("action", verb.name), ("index", "0"), ("select_across", "1" if across else "0"), *keys],
            "action_url": request.get_full_path(),
            "list_url": list_url(self.admin_site, Job),
            "reason": request.POST.get("reason", "")[: services.REASON_LENGTH],
            "needs_priority": verb is PRIORITY,
            "priority": request.POST.get("priority", "50")[:4],
            "error": error,
        }
        return console.render(self, request, "jobs/console/confirm.html", context, title=verb.action)

    def perform(self, request: HttpRequest, verb: Verb, jobs: list[Job], left: int = 0) -> None:
        tally, reason = Tally(verb, left=left), request.POST.get("reason", "").strip()
        for start in range(0, len(jobs), CHUNK):
            chunk = jobs[start : start + CHUNK]
            carry_out([job.pk for job in chunk], actor=actors.user(request.user), reason=reason, tally=tally)
            changed = set(tally.changed)
            message = f"{verb.name}: {reason}" if reason else verb.name
            log_history(request, [job for job in chunk if job.pk in changed], message)
        told = str(tally)
        if len(tally.made) == 1:
            follower = link(self.admin_site, Job, tally.made[0].pk)
            told = format_html("{} {} {}", told, _("It is followed by"), follower)
        self.message_user(request, told, messages.SUCCESS if tally.is_clean else messages.WARNING)

    def perform_one(self, request: HttpRequest, verb: Verb, row: Job) -> HttpResponse:
        self.perform(request, verb, [row])
        return HttpResponseRedirect(change_url(self.admin_site, Job, row.pk))

    def get_urls(self) -> list[URLPattern]:
        return [*console.urls(self), *super().get_urls()]


def is_agreed(request: HttpRequest, verb: Verb, count: int) -> bool:
    """One job, and what can be taken back on the rows that a person sees, need no second look."""
    if request.POST.get("confirmed"):
        return True
    if request.POST.get("dry_run") or verb is PRIORITY:
        return False
    return count <= 1 or (verb.name not in GRAVE and not is_across(request))


def is_across(request: HttpRequest) -> bool:
    """Whether all of the list are meant, in whatever spelling Django takes for a yes."""
    return request.POST.get("select_across", "").strip().lower() not in ("", "0", "false")


def meant(request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
    """What was ticked also has its place in the report where it has left the list since."""
    if is_across(request):
        return queryset
    return Job.objects.using(queryset.db).filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))


def with_priority(request: HttpRequest, verb: Verb) -> Verb:
    """The verb with the number that was asked for, or InvalidInput."""
    text = request.POST.get("priority", "")
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise InvalidInput("priority", _("must be a whole number from 0 to 100"))
    return replace(verb, call=partial(_set_priority, priority=parsing.integer(int(text), "priority", 0, 100)))


def _set_priority(job_id: UUID, *, priority: int, actor: Actor, reason: str) -> Job:
    return services.update(job_id, {"priority": priority}, actor=actor, reason=reason)
