"""Submit jobs and act on them; called by the API, the admin, the commands and other apps.

Each function validates its input and calls one function of the engine. Ids may be UUIDs or their text; audit events
name the `actor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, Literal, NamedTuple, Unpack
from uuid import UUID

from django.db import IntegrityError
from django.utils.translation import gettext as _

from jobs import db, ids
from jobs.actors import PYTHON, Actor
from jobs.engine import facts, lifecycle, ordering, transitions
from jobs.engine.insert import insert_job, insert_jobs
from jobs.engine.job_spec import COLUMNS, JobSpec
from jobs.errors import IdempotencyKeyReused, InvalidInput
from jobs.models import Job, JobEvent
from jobs.registry import registry
from jobs.services import job_spec
from jobs.states import EventKind
from jobs.validation import fields as validation

JobId = UUID | str
REASON_LENGTH = validation.REASON_LENGTH
KEY_BATCH_SIZE = 500
FACT_COLUMNS = facts.FACT_COLUMNS  # the columns that `get_facts_by_id` reads
get_facts, get_facts_by_id = facts.gather_facts, facts.gather_facts_by_id  # they decide which actions can be applied
insert_specs = insert_jobs  # of validated jobs without idempotency keys, in the caller's transaction


class SubmitResult(NamedTuple):
    """The job of a submission, and whether this submission created it; if not, an earlier one has the same key."""

    job: Job
    created: bool


def enqueue(
    job_type: str | None = None,
    params: Mapping[str, Any] | None = None,
    *,
    template: str | None = None,
    actor: Actor = PYTHON,
    reason: str = "",
    **fields: Unpack[job_spec.JobFields],
) -> Job:
    """Submit one job in the caller's transaction. The same idempotency key and body return the existing job."""
    item = {"job_type": job_type, "template": template, "params": params, **fields}
    return submit(item, actor=actor, reason=reason).job


def submit(item: Mapping[str, Any], *, actor: Actor = PYTHON, reason: str = "") -> SubmitResult:
    """Submit one job, given by the arguments of `enqueue`. Return it, and whether it was created now."""
    spec = job_spec.build_spec(item)
    try:
        return submit_spec(spec, actor=actor, reason=reason)
    except IntegrityError:  # the foreign key is checked on commit
        if spec.template_id is None:
            raise
        raise InvalidInput("template", _("The template has been deleted."), "unknown_template") from None


def submit_spec(spec: JobSpec, *, actor: Actor, reason: str = "") -> SubmitResult:
    """Submit one job whose fields are validated."""
    inserted = insert_job(spec, actor=actor, reason=validation.parse_reason(reason))
    if inserted is None:
        job = Job.objects.get(tenant=spec.tenant, idempotency_key=spec.idempotency_key)
        _require_same_body(job.idempotency_hash, spec)
        return SubmitResult(job, created=False)
    # Build the model from the inserted values: keyword arguments take four times as long for so many fields.
    columns = {**_column_defaults(), **spec.values(), **inserted._asdict(), "priority": spec.base_priority}
    return SubmitResult(Job.from_db(db.alias(), list(columns), list(columns.values())), created=True)


def enqueue_many(
    items: Iterable[Mapping[str, Any]], *, actor: Actor = PYTHON, reason: str = "", limit: int | None = None
) -> list[UUID]:
    """Submit many jobs, all or none, each given by the arguments of `enqueue`. Return their ids in order."""
    if not isinstance(items, Iterable) or isinstance(items, Mapping | str):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    item_list = list(items)
    if limit is not None and len(item_list) > limit:
        raise InvalidInput("jobs", _("has more than %d entries") % limit, "too_long")
    specs = job_spec.build_specs(item_list)
    return _submit_specs(specs, actor, validation.parse_reason(reason)) if specs else []


def get(job_id: JobId) -> Job:
    """Return a job, or raise NotFound."""
    return transitions.get_job(validation.parse_id(job_id))


def is_submitter(job_id: UUID, actor: Actor) -> bool:
    """Return whether the actor submitted the first attempt of the job's retry chain."""
    submitted = JobEvent.objects.filter(job_id=facts.find_first_attempt(job_id), kind=EventKind.SUBMITTED)
    return submitted.filter(actor_kind=actor.kind, actor_name=actor.name).exists()


def cancel(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.cancel(validation.parse_id(job_id), actor=actor, reason=validation.parse_reason(reason))


def pause(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.pause(validation.parse_id(job_id), actor=actor, reason=validation.parse_reason(reason))


def resume(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.resume(validation.parse_id(job_id), actor=actor, reason=validation.parse_reason(reason))


def retry(job_id: JobId, *, reason: str = "", fresh: bool = False, actor: Actor = PYTHON) -> Job:
    """Create a retry after the latest attempt; or start a retry that waits in its backoff now."""
    return submit_retry(job_id, reason=reason, fresh=fresh, actor=actor).job


def submit_retry(job_id: JobId, *, reason: str = "", fresh: bool = False, actor: Actor = PYTHON) -> SubmitResult:
    """Retry as `retry` does. Return the job, and whether it was created now."""
    validation.parse_boolean(fresh, "fresh")
    reason = validation.parse_reason(reason)
    return SubmitResult(*lifecycle.retry(validation.parse_id(job_id), actor=actor, reason=reason, fresh=fresh))


def resolve(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.resolve(validation.parse_id(job_id), actor=actor, reason=validation.parse_reason(reason))


def release(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.release(validation.parse_id(job_id), actor=actor, reason=validation.parse_reason(reason))


def skip(job_id: JobId, *, reason: str, actor: Actor) -> Job:
    """Skip a job that has not started, for the scheduler: too late, or overlapping with an earlier job."""
    return lifecycle.skip(validation.parse_id(job_id), actor=actor, reason=validation.parse_reason(reason))


def move(
    job_id: JobId,
    *,
    before: JobId | None = None,
    after: JobId | None = None,
    to: Literal["top", "bottom"] | None = None,
    reason: str = "",
    actor: Actor = PYTHON,
) -> Job:
    """Put a waiting job before or after another one, or first or last, within its tenant and priority."""
    moved_id, reason = validation.parse_id(job_id), validation.parse_reason(reason)
    if sum(position is not None for position in (before, after, to)) != 1:
        raise InvalidInput([], _("give exactly one of before, after and to"))
    if to is not None:
        if to not in ("top", "bottom"):
            raise InvalidInput("to", _("must be “top” or “bottom”"), "enum")
        return ordering.move_to_end(moved_id, top=to == "top", actor=actor, reason=reason)
    neighbour_id = validation.parse_id(before if after is None else after)
    return ordering.move_beside(moved_id, neighbour_id, after=after is not None, actor=actor, reason=reason)


def update(job_id: JobId, changes: Mapping[str, Any], *, reason: str = "", actor: Actor = PYTHON) -> Job:
    """Edit a waiting job; params and target only before its first dispatch, tags of any job. None clears a field."""
    job = get(job_id)
    return lifecycle.update(job.pk, _parse_changes(job, changes), actor=actor, reason=validation.parse_reason(reason))


@cache
def _column_defaults() -> dict[str, Any]:
    """Return the default of each column in the model's order. All values are immutable."""
    fields = Job._meta.concrete_fields
    return {field.attname: None if field.attname in COLUMNS else field.get_default() for field in fields}


def _submit_specs(specs: list[JobSpec], actor: Actor, reason: str) -> list[UUID]:
    """Insert jobs, all or none, and return the id of the job of each spec."""
    unique = _one_per_key(specs)
    with db.atomic() if any(spec.idempotency_key is not None for spec in unique) else nullcontext():
        inserted = set(insert_jobs(unique, actor=actor, reason=reason))
        if len(inserted) < len(unique):
            existing = _existing_ids([spec for spec in unique if spec.id not in inserted])
            return [existing.get(spec.id, spec.id) for spec in specs]
    return [spec.id for spec in specs]


def _one_per_key(specs: list[JobSpec]) -> list[JobSpec]:
    """Return the specs without repeated idempotency keys; a repeated one must have the same body and gets the id."""
    seen: dict[tuple[str, str], JobSpec] = {}
    unique = []
    for spec in specs:
        if spec.idempotency_key is None:
            unique.append(spec)
            continue
        first = seen.setdefault((spec.tenant, spec.idempotency_key), spec)
        if first is spec:
            unique.append(spec)
        else:
            _require_same_body(first.idempotency_hash, spec)
            spec.id = first.id
    return unique


def _existing_ids(specs: list[JobSpec]) -> dict[UUID, UUID]:
    """Map the id of each spec to the id of the existing job with the same key."""
    existing: dict[tuple[str, str | None], Job] = {}
    for start in range(0, len(specs), KEY_BATCH_SIZE):
        chunk = specs[start : start + KEY_BATCH_SIZE]
        tenants, keys = {spec.tenant for spec in chunk}, [spec.idempotency_key for spec in chunk]
        jobs = Job.objects.filter(tenant__in=tenants, idempotency_key__in=keys)
        for job in jobs.only("tenant", "idempotency_key", "idempotency_hash"):
            existing[job.tenant, job.idempotency_key] = job
    for spec in specs:
        _require_same_body(existing[spec.tenant, spec.idempotency_key].idempotency_hash, spec)
    return {spec.id: existing[spec.tenant, spec.idempotency_key].pk for spec in specs}


def _require_same_body(digest: str, spec: JobSpec) -> None:
    if digest != spec.idempotency_hash:
        message = _("The idempotency key “%s” was used for another submission.") % spec.idempotency_key
        raise IdempotencyKeyReused(message)


def _parse_changes(job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the changes and return them as columns."""
    if not isinstance(changes, Mapping):
        raise InvalidInput([], _("must be an object"), "dict_type")
    cleared: dict[str, Any] = {"priority": job_spec.NORMAL_PRIORITY, "time_sensitive": False, "tags": []}
    edits: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in lifecycle.EDITABLE:
            raise InvalidInput(str(name)[:100], _("cannot be changed"), "extra_forbidden")
        if name == "params":
            edits[name] = registry.get(job.job_type).signature.validate(validation.parse_json_object(value, "params"))
        else:
            edits[name] = cleared.get(name) if value is None else job_spec.VALIDATORS[name](value, name)
    if "priority" in edits:
        edits["base_priority"] = edits["priority"]
    if "target" in edits:
        target = edits["target"]
        edits["lane_id"] = None if target is None else ids.derive_lane_id(job.tenant, target)
    deadline, start = edits.get("deadline_at", job.deadline_at), edits.get("not_before", job.not_before)
    if {"deadline_at", "not_before"} & set(edits) and deadline and start and deadline <= start:
        raise InvalidInput("deadline_at", _("must be after not_before"), "deadline_before_start")
    return edits
