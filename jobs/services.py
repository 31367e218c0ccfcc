"""The front door: what the API, the admin, the commands and other apps call.

Parse at the gate, then one verb of the engine. Ids may be UUIDs or their text; `actor` says who is asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any, Literal, Unpack
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import db, ids, parsing, submission
from jobs.actors import PYTHON, Actor
from jobs.engine import lifecycle, ordering
from jobs.engine.moves import get, jobs
from jobs.engine.sql.batch import AT, Row
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
    form = submission.form_of({"job_type": job_type, "template": template, **fields})
    return submit_values(form.values(params, fields.get("idempotency_key")), actor=actor, reason=reason)


def submit_values(values: dict[str, Any], *, actor: Actor, reason: str = "") -> Job:
    """As `enqueue`, for the values of a form. A job with another id was submitted before, under the same key."""
    row = submission.row(values)
    born = submit([row], actor=actor, reason=_reason(reason))
    if not born:
        return _same_as(row)
    _, created_at, position, gate = born[0]
    born_as = {"created_at": created_at, "position": position, "gate": gate, "traceparent": row[AT["traceparent"]]}
    return _saved(values | born_as)


def enqueue_many(
    items: Iterable[Mapping[str, Any]], *, actor: Actor = PYTHON, reason: str = "", limit: int | None = None
) -> list[UUID]:
    """Submit many jobs, all or none: each item is what `enqueue` takes, as a mapping. Returns their ids in order."""
    if not isinstance(items, Iterable) or isinstance(items, Mapping | str):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    listed = list(items)
    if limit is not None and len(listed) > limit:
        raise InvalidInput("jobs", _("has more than %d entries") % limit, "too_long")
    rows = submission.rows(listed)
    return _insert_all(rows, _one_per_key(rows), actor, _reason(reason)) if rows else []


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
    """Edit a job that waits; params and target only before its first dispatch, tags of any job. None clears a field."""
    job = get(parsing.job_id(job_id))
    return lifecycle.update(job.pk, _edits(job, changes), actor=actor, reason=_reason(reason))


ID, TENANT, KEY, HASH = (AT[name] for name in ("id", "tenant", "idempotency_key", "idempotency_hash"))


def _saved(values: dict[str, Any]) -> Job:
    """The job as it was inserted, made by position: by keyword a model with so many fields takes four times as long."""
    known = {**_blank(), **values, "priority": values["base_priority"]}
    job: Job = Job.from_db(db.alias(), list(_blank()), [known[name] for name in _blank()])
    return job


@cache
def _blank() -> dict[str, Any]:
    """A job's columns in their order, as they are before anything is said. Nothing in here can be changed in place."""
    return {each.attname: None if each.attname in AT else each.get_default() for each in Job._meta.concrete_fields}


def _one_per_key(rows: list[Row]) -> list[Row]:
    """The first of those that share an idempotency key; the others must say the same and become the same job."""
    seen: dict[tuple[str, str], Row] = {}
    kept = []
    for row in rows:
        first = row if row[KEY] is None else seen.setdefault((row[TENANT], row[KEY]), row)
        if first is row:
            kept.append(row)
        elif first[HASH] != row[HASH]:
            raise _reused(row[KEY])
        else:
            row[ID] = first[ID]
    return kept


def _insert_all(rows: list[Row], unique: list[Row], actor: Actor, reason: str) -> list[UUID]:
    with db.atomic() if any(row[KEY] is not None for row in unique) else nullcontext():
        born = {each[0] for each in submit(unique, actor=actor, reason=reason)}
        taken = _taken([row for row in unique if row[ID] not in born]) if len(born) < len(unique) else {}
    return [taken.get(row[ID]) or row[ID] for row in rows] if taken else [row[ID] for row in rows]


def _taken(rows: list[Row]) -> dict[UUID, UUID]:
    """For each row whose key is in use, the job that has it; their submissions must have said the same."""
    found: dict[Any, tuple[UUID, str]] = {}
    for start in range(0, len(rows), KEYS_AT_ONCE):
        some = rows[start : start + KEYS_AT_ONCE]
        same = jobs().filter(tenant__in={row[TENANT] for row in some}, idempotency_key__in=[row[KEY] for row in some])
        for tenant, key, pk, said in same.values_list("tenant", "idempotency_key", "pk", "idempotency_hash"):
            found[tenant, key] = (pk, said)
    for row in rows:
        _require_same(found[row[TENANT], row[KEY]][1], row)
    return {row[ID]: found[row[TENANT], row[KEY]][0] for row in rows}


def _same_as(row: Row) -> Job:
    """The job that has this idempotency key already; its submission must have said the same."""
    job = jobs().get(tenant=row[TENANT], idempotency_key=row[KEY])
    _require_same(job.idempotency_hash, row)
    return job


def _require_same(digest: str, row: Row) -> None:
    if digest != row[HASH]:
        raise _reused(row[KEY])


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
    return (
        parsing.text(reason, "reason", max_length=REASON_LENGTH, allow_empty=True) if reason not in (None, "") else ""
    )
