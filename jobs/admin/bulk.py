"""Verbs on many jobs: first what would happen, then, once a person has agreed, what did happen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from jobs import parsing, services
from jobs.actors import Actor
from jobs.admin import console
from jobs.admin.foreseeing import forecast
from jobs.admin.showing import link, list_url
from jobs.admin.verbs import PRIORITY, Verb
from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.models import Job

if TYPE_CHECKING:
    from jobs.admin.acting import JobVerbs

GRAVE = ("cancel", "resolve", "retry")  # what cannot be taken back; a retry of one job is one more job, and no matter


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


def confirmation(
    admin: JobVerbs, request: HttpRequest, verb: Verb, jobs: list[Job], left: int, error: str = ""
) -> HttpResponse:
    """A page with the dry run's sentence, a sample, and the form that does it."""
    foreseen = forecast(verb, [job.pk for job in jobs])
    foreseen.left = left
    across = is_across(request)
    context = {
        "forecast": foreseen,
        "across": across,
        "limit": conf.CONSOLE_BULK_LIMIT,
        "sample": [(link(admin.admin_site, Job, job.pk), job) for job in foreseen.sample],
        "hidden": [*_repeated(request, verb, jobs, across)],
        "action_url": request.get_full_path(),
        "list_url": list_url(admin.admin_site, Job),
        "reason": request.POST.get("reason", "")[: services.REASON_LENGTH],
        "needs_priority": verb is PRIORITY,
        "priority": request.POST.get("priority", "50")[:4],
        "error": error,
    }
    return console.render(admin, request, "jobs/console/confirm.html", context, title=verb.action)


def with_priority(request: HttpRequest, verb: Verb) -> Verb:
    """The verb with the number that was asked for, or InvalidInput."""
    text = request.POST.get("priority", "")
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise InvalidInput("priority", _("must be a whole number from 0 to 100"))
    return replace(verb, call=partial(_set_priority, priority=parsing.integer(int(text), "priority", 0, 100)))


def _set_priority(job_id: UUID, *, priority: int, actor: Actor, reason: str) -> Job:
    return services.update(job_id, {"priority": priority}, actor=actor, reason=reason)


def _repeated(request: HttpRequest, verb: Verb, jobs: list[Job], across: bool) -> list[tuple[str, Any]]:
    """What the list's own form said: who chose all that match names one of them, as the list does."""
    named = jobs[:1] if across else jobs
    keys = [(ACTION_CHECKBOX_NAME, job.pk) for job in named]
    return [("action", verb.name), ("index", "0"), ("select_across", "1" if across else "0"), *keys]
