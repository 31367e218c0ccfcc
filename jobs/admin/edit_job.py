"""Screen to edit a job that has not started: priority, earliest start, deadline and params."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from jobs import actors
from jobs.admin.base import can_view_payload, log_history
from jobs.admin.formatting import change_url, link, short_id
from jobs.admin.forms import FORM_METHODS, JsonField, add_errors, posted_data, reason_field
from jobs.admin.screens import APP, render, screen
from jobs.errors import JobSchedulerError
from jobs.models import Job
from jobs.redaction import redact, restore
from jobs.services import jobs as job_services
from jobs.states import refusal


class TimeField(forms.DateTimeField):
    """A time whose hour may be ambiguous when clocks go back: it is the first of the two.

    Django's own field rejects such a time, even unchanged.
    """

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": 1}, format="%Y-%m-%dT%H:%M:%S")

    def to_python(self, value: Any) -> datetime | None:
        try:
            return super().to_python(value)
        except ValidationError as error:
            if error.code != "ambiguous_timezone":
                raise
            zone, local = timezone.get_current_timezone(), datetime.fromisoformat(value.strip())
            first = local.replace(tzinfo=zone)
            if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != local:  # skipped when clocks go forward
                raise
            return first


class EditForm(forms.Form):
    """Carries its initial values in hidden fields, to tell the user's changes from those made to the job meanwhile."""

    priority = forms.IntegerField(label=_("Priority"), min_value=0, max_value=100, show_hidden_initial=True)
    not_before = TimeField(label=_("Not before"), required=False, show_hidden_initial=True)
    deadline_at = TimeField(label=_("Deadline"), required=False, show_hidden_initial=True)
    params = JsonField(label=_("Params"), required=False, show_hidden_initial=True)
    reason = reason_field()

    def __init__(self, job: Job, data: Any, *, with_params: bool) -> None:
        times = {name: getattr(job, name) for name in ("not_before", "deadline_at")}
        super().__init__(data, initial={"priority": job.base_priority, **times, "params": redact(job.params)})
        self.job = job
        if not with_params:
            del self.fields["params"]

    def collect_changes(self) -> dict[str, Any]:
        """Return the changed fields; masked secrets in params are restored."""
        changed = {name: self.cleaned_data[name] for name in self.changed_data if name != "reason"}
        if "params" in changed:
            changed["params"] = restore(changed["params"] or {}, self.job.params, "params")
        return changed


@screen(
    "edit", _("Edit"), permission=f"{APP}.change_job", route="<uuid:job_id>/edit/", methods=FORM_METHODS, listed=False
)
def edit_job(admin: ModelAdmin, request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Show the form, or save its changes and redirect to the job's page."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None or not admin.has_view_permission(request, job):
        raise Http404
    facts = job_services.get_facts(job)
    with_params = can_view_payload(request) and refusal("update", facts, ["params"]) is None
    form = EditForm(job, posted_data(request), with_params=with_params)
    if form.is_valid():
        try:
            changes = form.collect_changes()
            job_services.update(
                job.pk, changes, actor=actors.make_user_actor(request.user), reason=form.cleaned_data["reason"]
            )
        except JobSchedulerError as error:
            add_errors(form, error)
        else:
            if changes:
                log_history(request, [job], f"edit {', '.join(sorted(changes))}")
                labels = ", ".join(str(form.fields[name].label) for name in changes)
                messages.success(request, _now("Changed: %s") % labels)
            else:
                messages.info(request, _now("Nothing was changed."))
            return HttpResponseRedirect(change_url(admin.admin_site, Job, job.pk))
    is_editable = refusal("update", facts) is None
    problem = "" if is_editable else _("It is running or has ended: there is nothing left to edit.")
    context = {"form": form, "job": job, "back": link(admin.admin_site, Job, job.pk), "problem": problem}
    return render(admin, request, "jobs/console/edit.html", context, title=_now("Edit %s") % short_id(job.pk))
