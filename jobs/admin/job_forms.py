"""Screens with the form of a job: submit a new one of any job type or from a template, clone one, edit one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import ADDITION
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs import actors
from jobs.admin.base import can_view_payload, log_history
from jobs.admin.columns import change_url, link, short_id
from jobs.admin.forms import (
    PARAM_PREFIX,
    JsonField,
    add_errors,
    build_param_fields,
    parse_params,
    reason_field,
    text_field,
)
from jobs.admin.job_actions import (
    FILTERS,
    describe_list,
    describe_unhandled,
    get_list_filters,
    keep_list_filters,
)
from jobs.admin.screens import APP, render, screen
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.explain import Handlers
from jobs.models import Job, JobTemplate
from jobs.models.job import UNTIL_CHOICES
from jobs.redaction import redact, restore
from jobs.registry import Handler, registry
from jobs.services import job_spec
from jobs.services import jobs as job_services
from jobs.services.jobs import REASON_LENGTH
from jobs.states import OnConflict, refusal

FORM_METHODS = ("GET", "HEAD", "POST")  # of a screen with a form
PRIORITIES = [("", _("Normal (50)")), ("LOW", _("Low (25)")), ("HIGH", _("High (75)")), ("URGENT", _("Urgent (100)"))]
UNIQUE_UNTIL = [("", "---------"), *UNTIL_CHOICES]
ON_CONFLICT = [
    ("", "---------"),
    (str(OnConflict.RETURN), pgettext_lazy("if a unique key is taken", "Keep the waiting job as it is")),
    (str(OnConflict.REPLACE), pgettext_lazy("if a unique key is taken", "Replace its params and its start time")),
]
SUBMISSION_FIELDS = (
    *("tenant", "target", "resource", "priority", "not_before", "hold", "tags", "idempotency_key"),
    *("unique_key", "unique_until", "on_conflict"),
)


class SubmissionForm(forms.Form):
    """The fields of a submission; the fields of its params are added for each job type."""

    tenant = text_field(_("Tenant"), _("Default: default"), 64)
    target = text_field(_("Target"), _("Jobs of one target run one after another."), 200)
    resource = text_field(_("Resource"), _("Default: set by the handler"), 200)
    priority = forms.ChoiceField(label=_("Priority"), required=False, choices=PRIORITIES)
    not_before = forms.DateTimeField(
        label=_("Not before"), required=False, widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )
    tags = text_field(_("Tags"), _("Separated by commas."), 2000)
    idempotency_key = text_field(_("Idempotency key"), _("Submitting the same key again returns the existing job."))
    unique_key = text_field(_("Unique key"), _("While a job with this key waits, no second one is made."))
    unique_until = forms.ChoiceField(label=_("Unique until"), required=False, choices=UNIQUE_UNTIL)
    on_conflict = forms.ChoiceField(label=_("If the key is taken"), required=False, choices=ON_CONFLICT)
    hold = forms.BooleanField(label=_("Hold until released"), required=False)
    reason = text_field(_("Reason"), length=REASON_LENGTH)

    def __init__(self, handler: Handler[..., Any], data: Any, preset: Any = None, unmasked: Any = None) -> None:
        """`preset` has the initial params, `unmasked` the same with the secrets that `preset` masks."""
        super().__init__(data)
        self.handler, self.unmasked = handler, unmasked or {}
        self.fields = {**build_param_fields(handler, preset), **self.fields}

    def mark_fixed_params(self, overridable: frozenset[str] | None) -> None:
        """Show which params a run of the template cannot set; None: it can set all."""
        if overridable is None:
            return
        for name, field in self.fields.items():
            if name.startswith(PARAM_PREFIX) and name.removeprefix(PARAM_PREFIX) not in overridable:
                field.help_text = _("Only the template can set it.")
                field.required = False

    def collect_fields(self) -> dict[str, Any]:
        """Return the arguments of `services.jobs.enqueue`, without job type and template."""
        fields = {name: self.cleaned_data[name] or None for name in SUBMISSION_FIELDS if name in self.fields}
        fields["tags"] = [tag.strip() for tag in (fields.get("tags") or "").split(",") if tag.strip()] or None
        params = parse_params(self.handler, self, self.unmasked)
        return {**fields, "params": params, "reason": self.cleaned_data["reason"]}


@screen("enqueue", _("New job"), permission=f"{APP}.add_job", methods=FORM_METHODS, listed=False)
def new_job(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Ask for a job type, then for its params. An unknown job type is a message on the page."""
    job_type = (request.POST.get("job_type") or request.GET.get("job_type") or "")[:200]
    handler, problem = None, ""
    if job_type:
        try:
            handler = registry.get(job_type)
        except InvalidInput as error:
            problem = error.errors[0]["msg"]
    form = None if handler is None else SubmissionForm(handler, _posted_data(request))
    if form is not None and (response := _submit(admin, request, form, job_type=form.handler.name)) is not None:
        return response
    context: dict[str, Any] = {
        "form": form,
        **_describe_handler(handler),
        "problem": problem,
        "types": registry.names(),
    }
    filters = get_list_filters(request)
    context |= {"back": describe_list(admin, filters), "zone": timezone.get_current_timezone_name()}
    context |= {"filters_name": FILTERS, "filters": filters.urlencode()}
    return render(admin, request, "jobs/console/enqueue.html", context, title=_("New job"))


@screen(
    "template-run",
    _("Run a template"),
    permission=f"{APP}.run_jobtemplate",
    route="template-run/<uuid:template_id>/",
    methods=FORM_METHODS,
    listed=False,
)
def run_template(admin: ModelAdmin, request: HttpRequest, template_id: UUID) -> HttpResponse:
    """Submit a job from a template. Its params are initial values, if the user may see them; unchanged ones apply."""
    template = JobTemplate.objects.filter(pk=template_id).first()
    if template is None:
        raise Http404
    back = link(admin.admin_site, JobTemplate, template.pk, template.name)
    context: dict[str, Any] = {"template": template, "back": back}
    try:
        handler = registry.get(template.job_type)
    except InvalidInput as error:
        context["problem"] = error.errors[0]["msg"]
        return render(admin, request, "jobs/console/enqueue.html", context, title=template.name)
    preset = redact(template.params) if can_view_payload(request) else dict.fromkeys(template.params, "")
    form = SubmissionForm(handler, _posted_data(request), preset=preset, unmasked=template.params)
    form.mark_fixed_params(job_spec.get_overridable(template))
    del form.fields["tenant"]
    if (response := _submit(admin, request, form, template=template.name, tenant=template.tenant)) is not None:
        return response
    context |= {"form": form, **_describe_handler(handler, template.tenant)}
    return render(admin, request, "jobs/console/enqueue.html", context, title=template.name)


def _posted_data(request: HttpRequest) -> Any:
    """Return the posted form; None for a GET, which leaves a form unbound."""
    return request.POST if request.method == "POST" else None


def _describe_handler(handler: Handler[..., Any] | None, tenant: str = "default") -> dict[str, str]:
    """Return the context on a handler. Never pass the handler itself: a template would call it, and it would run."""
    if handler is None:
        return {}
    options = handler.options
    job = Job(job_type=handler.name, tenant=tenant, resource=options.resource, remote=options.remote)
    warning = "" if Handlers().can_handle(job) else describe_unhandled(handler.name, 1)
    return {"job_type": handler.name, "doc": handler.doc, "warning": warning}


def _submit(admin: ModelAdmin, request: HttpRequest, form: SubmissionForm, **source: Any) -> HttpResponse | None:
    """Submit the job and redirect to its page. Return None if the form is not posted or has errors.

    `source` is the job type, or the template and its tenant.
    """
    if not form.is_valid():
        return None
    try:
        item = {**form.collect_fields(), **source}
        reason = item.pop("reason")
        job, created = job_services.submit(item, actor=actors.make_user_actor(request.user), reason=reason)
    except JobSchedulerError as error:
        add_errors(form, error)
        return None
    text = _now("Submitted:") if created else _now("No new job; this one has the key:")
    messages.success(request, format_html("{} {}", text, link(admin.admin_site, Job, job.pk) or job.pk))
    if created:
        log_history(request, [job], "enqueue", ADDITION)
    return HttpResponseRedirect(keep_list_filters(request, change_url(admin.admin_site, Job, job.pk)))


@screen(
    "clone",
    pgettext_lazy("verb", "Duplicate"),
    permission=f"{APP}.add_job",
    route="<uuid:job_id>/clone/",
    methods=("POST",),
    listed=False,
)
def clone_job(admin: ModelAdmin, request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Submit the same work as a new job: not a retry, in no group, due now."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None or not admin.has_view_permission(request, job):
        raise Http404
    site, actor = admin.admin_site, actors.make_user_actor(request.user)
    reason = request.POST.get("reason", "").strip() or f"duplicate of {job.pk}"
    try:
        clone, created = job_services.duplicate(job.pk, reason=reason, actor=actor)
    except JobSchedulerError as error:
        messages.error(request, _now("The duplicate was not submitted: %s") % error)
        return HttpResponseRedirect(keep_list_filters(request, change_url(site, Job, job.pk)))
    if created:
        log_history(request, [clone], f"duplicate of {job.pk}", ADDITION)
        original = link(site, Job, job.pk, short_id(job.pk)) or ""
        messages.success(request, format_html("{} {} {}", _now("Duplicate of"), original, _now("submitted.")))
    else:
        text = _now("No new job; this one has the key:")
        messages.warning(request, format_html("{} {}", text, link(site, Job, clone.pk) or clone.pk))
    return HttpResponseRedirect(keep_list_filters(request, change_url(site, Job, clone.pk)))


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

    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=0,
        max_value=100,
        show_hidden_initial=True,
        help_text=_("0 to 100: Low 25, Normal 50, High 75, Urgent 100"),
    )
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
    url = keep_list_filters(request, change_url(admin.admin_site, Job, job.pk))
    form = EditForm(job, _posted_data(request), with_params=with_params)
    if form.is_valid():
        try:
            changes, reason = form.collect_changes(), form.cleaned_data["reason"]
            # Without a deadline, a job cannot be time-sensitive, which this form does not show.
            implied = {"time_sensitive": False} if "deadline_at" in changes and not changes["deadline_at"] else {}
            actor = actors.make_user_actor(request.user)
            job_services.update(job.pk, changes | implied, actor=actor, reason=reason)
        except JobSchedulerError as error:
            add_errors(form, error)
        else:
            if changes:
                log_history(request, [job], f"edit {', '.join(sorted(changes))}")
                labels = ", ".join(str(form.fields[name].label) for name in changes)
                messages.success(request, _now("Changed: %s") % labels)
            else:
                messages.info(request, _now("Nothing was changed."))
            return HttpResponseRedirect(url)
    is_editable = refusal("update", facts) is None
    problem = "" if is_editable else _("Jobs that are running or finished cannot be edited.")
    context: dict[str, Any] = {
        "form": form,
        "job": job,
        "url": url,
        "problem": problem,
    }
    context |= {"back": describe_list(admin, get_list_filters(request)), "zone": timezone.get_current_timezone_name()}
    return render(admin, request, "jobs/console/edit.html", context, title=_now("Edit %s") % job.job_type)
