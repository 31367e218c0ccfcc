"""The verbs in the admin: actions on a selection, and buttons on a job's page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _

from jobs import actors, db
from jobs.admin import bulk, console
from jobs.admin.forms import DryRunForm
from jobs.admin.reading import StateAdmin
from jobs.admin.showing import change_url, link
from jobs.admin.verbs import PRIORITY, VERBS, Tally, Verb, carry_out, chosen
from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.models import Job

CHUNK = 500


def _action(verb: Verb) -> Any:
    def run(self: JobVerbs, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        return self.act(request, verb, queryset)

    run.__name__ = verb.name
    return admin.action(permissions=[verb.name], description=verb.action)(run)


def _permission(verb: str) -> Any:
    def has_permission(self: JobVerbs, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{verb}_job")

    return has_permission


class JobVerbs(StateAdmin):
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

    def may(self, request: HttpRequest, verb: Verb) -> bool:
        return bool(getattr(self, f"has_{verb.name}_permission")(request))

    def act(self, request: HttpRequest, verb: Verb, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Do it, or first show what it would do."""
        jobs, left = chosen(bulk.meant(request, queryset), conf.CONSOLE_BULK_LIMIT)
        if not bulk.is_agreed(request, verb, len(jobs)):
            return bulk.confirmation(self, request, verb, jobs, left)
        if verb is PRIORITY:
            try:
                verb = bulk.with_priority(request, verb)
            except InvalidInput as error:
                return bulk.confirmation(self, request, verb, jobs, left, error.errors[0]["msg"])
        self.perform(request, verb, jobs, left)
        return None

    def perform(self, request: HttpRequest, verb: Verb, jobs: list[Job], left: int = 0) -> None:
        tally = Tally(verb, left=left)
        for start in range(0, len(jobs), CHUNK):
            self._perform_chunk(request, jobs[start : start + CHUNK], tally)
        self.message_user(request, self._told(tally), messages.SUCCESS if tally.is_clean else messages.WARNING)

    # A site may wrap requests in a transaction; a verb on thousands of jobs must not hold all their locks to the end.
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
        job = self.get_object(request, unquote(object_id))
        if job is None:
            raise Http404
        self.perform(request, VERBS[verb], [job])
        return HttpResponseRedirect(change_url(self.admin_site, Job, job.pk))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.verb_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_verb"
        own = path("<path:object_id>/verb/<slug:verb>/", view, name=name)
        return [*console.urls(self), own, *super().get_urls()]

    def _perform_chunk(self, request: HttpRequest, jobs: list[Job], tally: Tally) -> None:
        reason = request.POST.get("reason", "").strip()
        carry_out([job.pk for job in jobs], actor=actors.user(request.user), reason=reason, tally=tally)
        changed = set(tally.changed)
        entries: Any = [job for job in jobs if job.pk in changed]
        if entries:
            message = f"{tally.verb.name}: {reason}" if reason else tally.verb.name
            user_id: Any = request.user.pk
            LogEntry.objects.log_actions(user_id, entries, CHANGE, message)

    def _told(self, tally: Tally) -> str:
        if len(tally.made) != 1:
            return str(tally)
        follower = link(self.admin_site, Job, tally.made[0].pk)
        return format_html("{} {} {}", str(tally), _("It is followed by"), follower)
