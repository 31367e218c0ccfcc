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
from pydantic_core import from_json

from jobs import db, ids
from jobs.actors import PYTHON, Actor
from jobs.engine import facts, lifecycle, ordering, transitions
from jobs.engine.insert import insert_job, insert_jobs
from jobs.engine.job_spec import COLUMNS, JobSpec, dump_json
from jobs.engine.sql import unique_keys
from jobs.engine.sql.insert import EventData, InsertedJob
from jobs.errors import IdempotencyKeyReused, InvalidInput, UniqueKeyTaken
from jobs.models import Job, JobEvent
from jobs.services import job_spec
from jobs.states import EventKind, OnConflict
from jobs.validation import fields as validation
from jobs.validation.retry_policy import merge_retry_options

JobId = UUID | str
REASON_LENGTH = validation.REASON_LENGTH
KEY_BATCH_SIZE = 500
REPLACE_LIMIT = 200  # jobs that one call may replace: each is an edit of its own, in one transaction
KEY_ATTEMPTS = 100  # how often a unique key may be taken and be free again during one submission
DUPLICATED_FIELDS = (
    *("tenant", "target", "resource", "cost_units", "constraints", "expected_duration_sec", "max_runtime_sec"),
    *("token_limit", "max_retries", "retry_policy", "tags"),
)
REPLACED_REASON = "replaced by a submission with its unique key"
FACT_COLUMNS = facts.FACT_COLUMNS  # the columns that `get_facts_by_id` reads
get_facts, get_facts_by_id = facts.gather_facts, facts.gather_facts_by_id  # they decide which actions can be applied
read_chain_histories = facts.read_chain_histories
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
    item = {"job_type": job_type, "template": template, "params": params, **merge_retry_options(fields)}
    return submit(item, actor=actor, reason=reason).job


def submit(item: Mapping[str, Any], *, actor: Actor = PYTHON, reason: str = "") -> SubmitResult:
    """Submit one job, given by the arguments of `enqueue` (delays of retries as `retry_policy`).

    Return it, and whether it was created now.
    """
    spec = job_spec.build_spec(item)
    try:
        return submit_spec(spec, actor=actor, reason=reason)
    except IntegrityError:  # the foreign key is checked on commit
        if spec.template_id is None:
            raise
        raise InvalidInput("template", _("The template has been deleted."), "unknown_template") from None


def submit_spec(spec: JobSpec, *, actor: Actor, reason: str = "", event_data: EventData | None = None) -> SubmitResult:
    """Submit one job whose fields are validated, or return the one that has its idempotency key or its unique key.

    `event_data` is that of its SUBMITTED event, by job id.
    """
    reason = validation.parse_reason(reason)
    for _attempt in range(KEY_ATTEMPTS):
        with db.atomic() if spec.unique_key is not None else nullcontext():
            inserted = insert_job(spec, actor=actor, reason=reason, event_data=event_data)
            if inserted is not None:
                return SubmitResult(_build_job(spec, inserted), created=True)
            if (existing := _find_existing(spec, actor, reason)) is not None:
                return SubmitResult(existing, created=False)
        # The job that had the unique key has started or ended since.
    raise UniqueKeyTaken(_("The unique key “%s” changes hands too often; try again.") % spec.unique_key)


def _find_existing(spec: JobSpec, actor: Actor, reason: str) -> Job | None:
    """Return the job with the spec's idempotency key, or with its unique key; the latter gets the new params if asked.

    None if no job has one of them any more.
    """
    if spec.idempotency_key is not None:
        job = Job.objects.filter(tenant=spec.tenant, idempotency_key=spec.idempotency_key).first()
        if job is not None:
            _require_same_body(job.idempotency_hash, spec)
            return job
    if spec.unique_key is None:
        return None
    holder = _find_holder(spec)
    job = None if holder is None else Job.objects.filter(pk=holder.id).first()
    if holder is None or job is None or job.is_terminal:
        return None
    if spec.on_conflict == OnConflict.RETURN or not holder.is_waiting or job.retry_of_id is not None:
        return job  # a retry continues from the checkpoint of these params, after the delay of its failure
    changes = {"params": from_json(spec.params), "not_before": spec.not_before}
    job_spec.require_valid_times({"deadline_at": job.deadline_at, "not_before": spec.not_before})
    return lifecycle.update(job.pk, changes, actor=actor, reason=reason or REPLACED_REASON)


def _find_holder(spec: JobSpec) -> unique_keys.Holder | None:
    """Return the job that has the spec's unique key, or None. Raise UniqueKeyTaken if it does other work."""
    holder = unique_keys.find_holder(db.connection(), spec)
    if holder is None or holder.does_same_work(spec):
        return holder
    names = {"key": spec.unique_key, "job": holder.id, "type": holder.job_type, "addon": holder.addon_id}
    text = _("The unique key “%(key)s” is in use by job %(job)s of type %(type)s.")
    if holder.addon_id:
        text = _("The unique key “%(key)s” is in use by job %(job)s of type %(type)s for addon %(addon)s.")
    error = UniqueKeyTaken(text % names)
    error.holder_id = holder.id
    raise error


def _build_job(spec: JobSpec, inserted: InsertedJob) -> Job:
    # Build the model from the inserted values: keyword arguments take four times as long for so many fields.
    columns = {**_column_defaults(), **spec.values(), **inserted._asdict(), "priority": spec.base_priority}
    return Job.from_db(db.alias(), list(columns), list(columns.values()))


def enqueue_many(
    items: Iterable[Mapping[str, Any]], *, actor: Actor = PYTHON, reason: str = "", limit: int | None = None
) -> list[UUID]:
    """Submit many jobs, all or none, each given by the arguments of `submit`. Return their ids in order."""
    if not isinstance(items, Iterable) or isinstance(items, Mapping | str):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    item_list = list(items)
    if limit is not None and len(item_list) > limit:
        raise InvalidInput("jobs", _("has more than %d entries") % limit, "too_long")
    specs = job_spec.build_specs(item_list)
    return _submit_specs(specs, actor, validation.parse_reason(reason)) if specs else []


def duplicate(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> SubmitResult:
    """Submit the work of a job again, with its context, as a new job: not a retry, in no group, due now.

    Its keys are not copied. If the handler gives the new job a unique key that is taken, return the job that has it.
    """
    job = get(job_id)
    fields = {name: getattr(job, name) for name in DUPLICATED_FIELDS}
    fields |= {"addon_id": job.addon_id or None, "priority": job.base_priority}
    spec = job_spec.build_spec({"job_type": job.job_type, "params": job.params, **fields})
    spec.context = None if job.context is None else dump_json(job.context)
    return submit_spec(spec, actor=actor, reason=reason)


def get(job_id: JobId) -> Job:
    """Return a job, or raise NotFound."""
    return transitions.get_job(validation.parse_id(job_id))


def find_latest_attempt(job_id: UUID) -> UUID:
    """Return the id of the latest attempt of the job's retry chain: of the job itself, if it was not retried."""
    latest = facts.find_latest_attempts([job_id]).get(job_id)
    return job_id if latest is None else latest.id


def read_latest_attempts(job_ids: Iterable[UUID]) -> dict[UUID, Job]:
    """Return the latest attempt of each job's retry chain by the job's id; deleted jobs are left out."""
    ids = set(job_ids)
    latest = facts.find_latest_attempts(ids)
    latest_ids = {job_id: latest[job_id].id if job_id in latest else job_id for job_id in ids}
    jobs = Job.objects.only("status", "status_reason", "retry_of_id").in_bulk(latest_ids.values())
    return {job_id: jobs[pk] for job_id, pk in latest_ids.items() if pk in jobs}


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
        raise InvalidInput([], _("enter exactly one of before, after and to"))
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
    if sum(spec.unique_key is not None and spec.on_conflict == OnConflict.REPLACE for spec in specs) > REPLACE_LIMIT:
        raise InvalidInput("jobs", _("has more than %d entries with on_conflict=replace") % REPLACE_LIMIT, "too_long")
    unique = _one_per_key(specs)
    has_keys = any(spec.idempotency_key is not None or spec.unique_key is not None for spec in unique)
    with db.atomic() if has_keys else nullcontext():
        inserted = set(insert_jobs(unique, actor=actor, reason=reason))
        if len(inserted) < len(unique):
            rejected = [spec for spec in unique if spec.id not in inserted]
            existing = _existing_ids(rejected)
            unique_specs = [spec for spec in rejected if spec.id not in existing]
            for spec in sorted(unique_specs, key=lambda spec: (spec.tenant, spec.unique_key)):  # as they are inserted
                holder = _find_holder(spec) if spec.on_conflict == OnConflict.RETURN else None
                existing[spec.id] = holder.id if holder else submit_spec(spec, actor=actor, reason=reason).job.pk
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
    """Map the id of each spec to the id of the existing job with the same idempotency key, if there is one."""
    existing: dict[tuple[str, str | None], Job] = {}
    keyed = [spec for spec in specs if spec.idempotency_key is not None]
    for start in range(0, len(keyed), KEY_BATCH_SIZE):
        chunk = keyed[start : start + KEY_BATCH_SIZE]
        tenants, keys = {spec.tenant for spec in chunk}, [spec.idempotency_key for spec in chunk]
        jobs = Job.objects.filter(tenant__in=tenants, idempotency_key__in=keys)
        for job in jobs.only("tenant", "idempotency_key", "idempotency_hash"):
            existing[job.tenant, job.idempotency_key] = job
    found = {spec.id: job for spec in specs if (job := existing.get((spec.tenant, spec.idempotency_key))) is not None}
    for spec in specs:
        if spec.id in found:
            _require_same_body(found[spec.id].idempotency_hash, spec)
    return {spec_id: job.pk for spec_id, job in found.items()}


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
            handler = job_spec.get_handler(job.job_type, is_remote=job.remote)
            edits[name] = handler.signature.validate(validation.parse_json_object(value, "params"))
        else:
            edits[name] = cleared.get(name) if value is None else job_spec.VALIDATORS[name](value, name)
    edits = job_spec.resolve_delays(edits)
    if "priority" in edits:
        edits["base_priority"] = edits["priority"]
    if "target" in edits:
        target = edits["target"]
        edits["lane_id"] = None if target is None else ids.derive_lane_id(job.tenant, target)
    if times := {name: value for name, value in edits.items() if name in job_spec.TIME_FIELDS}:
        job_spec.require_valid_times({name: getattr(job, name) for name in job_spec.TIME_FIELDS} | times)
    return edits
