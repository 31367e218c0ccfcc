"""The front door: what the API, the admin, the commands and other apps call.

Parse at the gate, then one verb of the engine. Ids may be UUIDs or their text; `actor` says who is asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Unpack
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import db, ids, parsing, submission
from jobs.actors import PYTHON, Actor
from jobs.engine import lifecycle, ordering
from jobs.engine.moves import get, jobs
from jobs.engine.submit import submit
from jobs.errors import IdempotencyKeyReused, InvalidInput
from jobs.models import Job
from jobs.registry import registry

JobId = UUID | str
REASON_LENGTH = 2000
KEYS_AT_ONCE = 500


def enqueue(
    job_type: str | None = None,
    params: Mapping[str, Any] | None = None,
    *,
    template: str | None = None,
    actor: Actor = PYTHON,
    reason: str = "",
    **fields: Unpack[submission.Fields],
) -> Job:
    """Submit one job, in the caller's transaction. The same idempotency key and body give the same job."""
    values = _prepare({"job_type": job_type, "params": params, "template": template, **fields})
    born = submit([submission.row(values)], actor=actor, reason=_reason(reason))
    if not born:
        return _same_as(values)
    _, created_at, position, gate = born[0]
    job = Job(
        **values | {"priority": values["base_priority"], "created_at": created_at, "position": position, "gate": gate}
    )
    job._state.adding, job._state.db = False, None
    return job


def enqueue_many(
    items: Iterable[Mapping[str, Any]], *, actor: Actor = PYTHON, reason: str = "", limit: int | None = None
) -> list[UUID]:
    """Submit many jobs, all or none: each item is what `enqueue` takes, as a mapping. Returns their ids in order."""
    if not isinstance(items, Iterable) or isinstance(items, Mapping | str):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    listed = list(items)
    if limit is not None and len(listed) > limit:
        raise InvalidInput("jobs", _("has more than %d entries") % limit, "too_long")
    prepared = [_prepare_item(index, item) for index, item in enumerate(listed)]
    return _insert_all(prepared, _one_per_key(prepared), actor, _reason(reason))


def cancel(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.cancel(parsing.job_id(job_id), actor=actor, reason=_reason(reason))


def pause(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.pause(parsing.job_id(job_id), actor=actor, reason=_reason(reason))


def resume(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.resume(parsing.job_id(job_id), actor=actor, reason=_reason(reason))


def retry(job_id: JobId, *, reason: str = "", fresh: bool = False, actor: Actor = PYTHON) -> Job:
    """Follow the chain's tail with a new job (or send a retry that waits out its backoff off at once)."""
    return retried(job_id, reason=reason, fresh=fresh, actor=actor)[0]


def retried(job_id: JobId, *, reason: str = "", fresh: bool = False, actor: Actor = PYTHON) -> tuple[Job, bool]:
    """As `retry`, and whether the job was made now."""
    parsing.boolean(fresh, "fresh")
    return lifecycle.retry(parsing.job_id(job_id), actor=actor, reason=_reason(reason), fresh=fresh)


def resolve(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.resolve(parsing.job_id(job_id), actor=actor, reason=_reason(reason))


def release(job_id: JobId, *, reason: str = "", actor: Actor = PYTHON) -> Job:
    return lifecycle.release(parsing.job_id(job_id), actor=actor, reason=_reason(reason))


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
    job, why = parsing.job_id(job_id), _reason(reason)
    if sum(each is not None for each in (before, after, to)) != 1:
        raise InvalidInput([], _("say exactly one of before, after and to"))
    if to is not None:
        if to not in ("top", "bottom"):
            raise InvalidInput("to", _("must be “top” or “bottom”"), "enum")
        return ordering.move_to_end(job, top=to == "top", actor=actor, reason=why)
    beside = parsing.job_id(before if after is None else after)
    return ordering.move_beside(job, beside, after=after is not None, actor=actor, reason=why)


def update(job_id: JobId, changes: Mapping[str, Any], *, reason: str = "", actor: Actor = PYTHON) -> Job:
    """Edit a job that was never dispatched (tags: any job). None clears a field."""
    job = get(parsing.job_id(job_id))
    return lifecycle.update(job.pk, _edits(job, changes), actor=actor, reason=_reason(reason))


def _prepare(item: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in item.items() if name not in ("job_type", "params", "template")}
    job_type, name = item.get("job_type"), item.get("template")
    if (job_type is None) == (name is None):
        raise InvalidInput("job_type", _("say either a job type or a template"), "missing")
    template = None
    if name is not None:
        tenant = parsing.tenant(fields.get("tenant") or "default")
        template = submission.find_template(name, tenant)
    return submission.prepare(job_type, item.get("params"), fields, template=template)


def _prepare_item(index: int, item: Any) -> dict[str, Any]:
    try:
        if not isinstance(item, Mapping):
            raise InvalidInput([], _("must be an object"), "dict_type")
        return _prepare(item)
    except InvalidInput as error:
        raise error.under("jobs", index) from None


def _one_per_key(prepared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of those that share an idempotency key; the others must say the same and become the same job."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    kept = []
    for values in prepared:
        key = (values["tenant"], values["idempotency_key"])
        first = seen.setdefault(key, values) if key[1] is not None else values
        if first is values:
            kept.append(values)
        elif first["idempotency_hash"] != values["idempotency_hash"]:
            raise _reused(key[1])
        else:
            values["id"] = first["id"]
    return kept


def _insert_all(prepared: list[dict[str, Any]], unique: list[dict[str, Any]], actor: Actor, reason: str) -> list[UUID]:
    if not unique:
        return []
    with db.atomic():
        born = {each[0] for each in submit([submission.row(values) for values in unique], actor=actor, reason=reason)}
        taken = _taken([values for values in unique if values["id"] not in born])
    return [taken.get(values["id"], values["id"]) for values in prepared]


def _taken(values: list[dict[str, Any]]) -> dict[UUID, UUID]:
    """For each submission whose idempotency key is taken, by which job; it must have said the same."""
    found: dict[UUID, UUID] = {}
    for start in range(0, len(values), KEYS_AT_ONCE):
        batch = {(each["tenant"], each["idempotency_key"]): each for each in values[start : start + KEYS_AT_ONCE]}
        same = jobs().filter(tenant__in={key[0] for key in batch}, idempotency_key__in=[key[1] for key in batch])
        for job_id, digest, *key in same.values_list("pk", "idempotency_hash", "tenant", "idempotency_key"):
            asked = batch.get((key[0], key[1]))
            if asked is not None:
                _require_same(digest, asked)
                found[asked["id"]] = job_id
    return found


def _same_as(values: Mapping[str, Any]) -> Job:
    """The job that has this idempotency key already; its submission must have said the same."""
    job = jobs().get(tenant=values["tenant"], idempotency_key=values["idempotency_key"])
    _require_same(job.idempotency_hash, values)
    return job


def _require_same(digest: str, values: Mapping[str, Any]) -> None:
    if digest != values["idempotency_hash"]:
        raise _reused(values["idempotency_key"])


def _reused(key: Any) -> IdempotencyKeyReused:
    return IdempotencyKeyReused(_("The idempotency key “%s” was used for another submission.") % key)


def _edits(job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes as columns, each through its gate."""
    if not isinstance(changes, Mapping):
        raise InvalidInput([], _("must be an object"), "dict_type")
    edits: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in lifecycle.EDITABLE:
            raise InvalidInput(str(name)[:100], _("cannot be changed"), "extra_forbidden")
        edits[name] = _edited(job, name, value)
    if "priority" in edits:
        edits["base_priority"] = edits["priority"]
    if "target" in edits:
        target = edits["target"]
        edits["lane_id"] = None if target is None else ids.lane_id(job.tenant, target)
    deadline, start = edits.get("deadline_at", job.deadline_at), edits.get("not_before", job.not_before)
    if {"deadline_at", "not_before"} & set(edits) and deadline and start and deadline <= start:
        raise InvalidInput("deadline_at", _("must be after not_before"), "deadline_before_start")
    return edits


def _edited(job: Job, name: str, value: Any) -> Any:
    if name == "params":
        params = parsing.json_object(value, "params")
        return registry.get(job.job_type).signature.validate(params)
    if value is None and name in ("priority", "time_sensitive", "tags"):
        return {"priority": submission.NORMAL, "time_sensitive": False, "tags": []}[name]
    return None if value is None else submission.GATES[name](value, name)


def _reason(reason: Any) -> str:
    return parsing.text(reason, "reason", max_length=REASON_LENGTH, allow_empty=True) if reason else ""
