"""The same work once more, as a job of its own: not a retry, and in no group."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import ADDITION, LogEntry
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import actors, services
from jobs.admin.console import APP, screen
from jobs.admin.showing import change_url, link
from jobs.errors import JobSchedulerError
from jobs.models import Job

KEPT = (
    *("tenant", "target", "resource", "cost_units", "constraints", "expected_duration_sec", "max_runtime_sec"),
    *("token_limit", "max_retries", "tags"),
)


@screen(
    "clone",
    gettext_lazy("Clone"),
    permission=f"{APP}.add_job",
    route="<uuid:job_id>/clone/",
    methods=("POST",),
    listed=False,
)
def clone(admin: ModelAdmin, request: HttpRequest, job_id: UUID) -> HttpResponse:
    job = Job.objects.filter(pk=job_id).first()
    if job is None or not admin.has_view_permission(request, job):
        raise Http404
    site = admin.admin_site
    try:
        made = again(job, actors.user(request.user), request.POST.get("reason", "").strip())
    except JobSchedulerError as error:
        messages.error(request, _("It could not be submitted again: %s") % error)
        return HttpResponseRedirect(change_url(site, Job, job.pk))
    user_id: Any = request.user.pk
    LogEntry.objects.log_actions(user_id, [made], ADDITION, f"clone of {job.pk}")
    said = format_html("{} {}", _("This job does the same work as"), link(site, Job, job.pk) or "")
    messages.success(request, said)
    return HttpResponseRedirect(change_url(site, Job, made.pk))


def again(job: Job, actor: actors.Actor, reason: str) -> Job:
    """With what the job was told, at its own priority, from now on. A key means one job, so it is not repeated."""
    fields: Any = {name: getattr(job, name) for name in KEPT}
    fields |= {"addon_id": job.addon_id or None, "priority": job.base_priority}
    return services.enqueue(job.job_type, job.params, actor=actor, reason=reason or f"clone of {job.pk}", **fields)
