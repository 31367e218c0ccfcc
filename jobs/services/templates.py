"""Job templates: create, change and delete presets for jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import ProtectedError, QuerySet
from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import PYTHON, Actor
from jobs.errors import Conflict, InvalidInput, InvalidParams, NotFound
from jobs.models import Action, Job, JobTemplate
from jobs.redaction import has_secret, restore
from jobs.registry import registry
from jobs.services import activity, job_spec
from jobs.states import Status
from jobs.validation import fields
from jobs.validation.retry_policy import parse_retry_policy

logger = logging.getLogger("jobs.services.templates")


class NameTaken(Conflict):
    code = "name_taken"


class TemplateInUse(Conflict):
    code = "in_use"


VALIDATORS: dict[str, Callable[[Any, Any], Any]] = {
    "name": fields.parse_identifier,
    "job_type": fields.parse_identifier,
    "params": fields.parse_json_object,
    "overridable": fields.parse_param_names,
    "retry_policy": parse_retry_policy,
    **{name: job_spec.VALIDATORS[name] for name in job_spec.TEMPLATE_FIELDS},
}
REQUIRED_FIELDS = ("name", "job_type")
EMPTY_VALUES: dict[str, Any] = {"params": dict, "retry_policy": dict, "tags": list, "resource": str}


def create(values: Mapping[str, Any], *, tenant: str = "default", actor: Actor = PYTHON) -> JobTemplate:
    """Create a template. Its params may be incomplete; those that are given must be valid."""
    for name in REQUIRED_FIELDS:
        if values.get(name) is None:
            raise InvalidInput(name, _("is required"), "missing")
    template = JobTemplate(tenant=fields.parse_tenant(tenant), **_parse_values(values, {}))
    validate_params(template.job_type, template.params)
    with db.atomic():
        _save(template)
        activity.record(Action.TEMPLATE_CREATE, _to_object(template), actor=actor, after=_build_fields(template))
    _log(template, "created", actor)
    return template


def get(template_id: UUID | str, *, tenant: str | None = None) -> JobTemplate:
    return _find(filter_by_tenant(tenant), template_id)


def filter_by_tenant(tenant: str | None) -> QuerySet[JobTemplate]:
    """Return the templates of one tenant, or of all."""
    rows = JobTemplate.objects.all()
    return rows if tenant is None else rows.filter(tenant=tenant)


def update(
    template_id: UUID | str, changes: Mapping[str, Any], *, tenant: str | None = None, actor: Actor = PYTHON
) -> JobTemplate:
    """Change the given fields; None clears a field. Existing jobs of the template do not change."""
    with db.atomic():
        template = _find(filter_by_tenant(tenant).select_for_update(no_key=True), template_id)
        before = _build_fields(template)
        for name, value in _parse_values(changes, get_known_params(template, changes)).items():
            setattr(template, name, value)
        validate_params(template.job_type, template.params)
        _save(template)
        changed, after = _to_object(template), _build_fields(template)
        activity.record_changes(Action.TEMPLATE_UPDATE, changed, before, after, actor=actor)
    _log(template, "changed", actor)
    return template


def get_known_params(template: JobTemplate, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params whose masked secrets an edit may keep.

    None where another job type, or more params that a run may set, would let the secrets go elsewhere. Raise
    InvalidInput if the edit would keep them then, because it does not contain params.
    """
    job_type = changes.get("job_type") or template.job_type
    overridable = changes.get("overridable", template.overridable)
    names = [] if overridable is None else fields.parse_param_names(overridable, "overridable")
    is_widened = not set(names) <= set(template.overridable or ())
    if not has_secret(template.params) or (job_type == template.job_type and not is_widened):
        return template.params
    if "params" not in changes:
        message = _("contain secrets: write them in again with another job type or more overridable params")
        raise InvalidInput("params", message, "hidden")
    return {}


def delete(template_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> None:
    """Delete a template; raise TemplateInUse while a live job or another row refers to it."""
    with db.atomic():
        template = _find(filter_by_tenant(tenant).select_for_update(no_key=True), template_id)
        jobs = Job.objects.filter(template_id=template.pk)
        paused = jobs.of_rare_status(Status.PAUSED)
        if jobs.waiting().exists() or jobs.active().exists() or paused.exists():
            raise TemplateInUse(_("Jobs of template “%s” have not finished.") % template.name)
        try:
            JobTemplate.objects.filter(pk=template.pk).delete()
        except ProtectedError as error:
            users = ", ".join(sorted({str(row._meta.verbose_name) for row in error.protected_objects}))
            values = {"name": template.name, "users": users}
            raise TemplateInUse(_("“%(name)s” is used by: %(users)s.") % values) from None
        activity.record(Action.TEMPLATE_DELETE, _to_object(template), actor=actor, before=_build_fields(template))
    _log(template, "deleted", actor)


def validate_params(job_type: str, params: dict[str, Any]) -> None:
    """Raise unless the job type exists and accepts these params; a submission may add missing ones."""
    try:
        registry.get(job_type).signature.validate(params)
    except InvalidParams as error:
        errors = [detail for detail in error.errors if detail["type"] != "missing"]
        if errors:
            raise InvalidParams.from_errors(errors) from None


def _find(templates: QuerySet[JobTemplate], template_id: UUID | str) -> JobTemplate:
    template = templates.filter(pk=fields.parse_id(template_id)).first()
    if template is None:
        raise NotFound(_("There is no template with this id."))
    return template


def _parse_values(values: Mapping[str, Any], known_params: dict[str, Any]) -> dict[str, Any]:
    """Validate the fields. Masked params get their known values back."""
    clean: dict[str, Any] = {}
    for name, value in values.items():
        if name not in VALIDATORS:
            raise InvalidInput(str(name)[:100], _("is not a field of a template"), "extra_forbidden")
        if value is None and name in REQUIRED_FIELDS:
            raise InvalidInput(name, _("must not be empty"), "missing")
        if value is None:
            clean[name] = EMPTY_VALUES[name]() if name in EMPTY_VALUES else None
            continue
        clean[name] = VALIDATORS[name](restore(value, known_params, name) if name == "params" else value, name)
    return clean


def _save(template: JobTemplate) -> None:
    try:
        with db.atomic():
            template.save(using=db.alias())
    except IntegrityError:
        names = {"name": template.name, "tenant": template.tenant}
        raise NameTaken(_("Tenant %(tenant)s already has a template “%(name)s”.") % names) from None
    template.refresh_from_db(using=db.alias())


def _to_object(template: JobTemplate) -> activity.ChangedObject:
    return activity.ChangedObject(template.pk, template.name, template.tenant)


def _build_fields(template: JobTemplate) -> dict[str, Any]:
    return {name: getattr(template, name) for name in VALIDATORS}


def _log(template: JobTemplate, action: str, actor: Actor) -> None:
    logger.info("template %s of tenant %s %s by %s", template.name, template.tenant, action, actor)
