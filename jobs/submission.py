"""From what somebody asked for to the row that will be inserted.

Every field passes the gate; what was not said comes from the template, then the handler, then the settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypedDict
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import db, ids, parsing
from jobs.conf import conf
from jobs.engine.sql.columns import INSERTED
from jobs.engine.submit import dump
from jobs.errors import InvalidInput
from jobs.models import JobTemplate
from jobs.registry import Options, registry
from jobs.setting_rules import YEAR_SEC
from jobs.states import Status


class Fields(TypedDict, total=False):
    """What a submission may say besides job type and params. None means: not said."""

    tenant: str | None
    target: str | None
    addon_id: str | None
    priority: int | str | None
    position: int | None
    not_before: datetime | str | None
    deadline_at: datetime | str | None
    time_sensitive: bool | None
    expected_duration_sec: float | None
    max_runtime_sec: float | None
    cost_units: int | None
    constraints: Mapping[str, bool] | None
    resource: str | None
    token_limit: int | None
    max_retries: int | None
    tags: list[str] | tuple[str, ...] | None
    idempotency_key: str | None
    hold: bool | None


FARTHEST = 2**62  # half of what the column holds, so that others can always be moved past either end
DURATION = partial(parsing.number, above=0, maximum=YEAR_SEC)
GATES: dict[str, Callable[[Any, str], Any]] = {
    "tenant": parsing.tenant,
    "target": parsing.target,
    "addon_id": parsing.identifier,
    "priority": parsing.priority,
    "position": partial(parsing.integer, minimum=-FARTHEST, maximum=FARTHEST),
    "not_before": parsing.moment,
    "deadline_at": parsing.moment,
    "time_sensitive": parsing.boolean,
    "expected_duration_sec": DURATION,
    "max_runtime_sec": DURATION,
    "cost_units": partial(parsing.integer, minimum=0, maximum=100),
    "constraints": parsing.constraints,
    "resource": parsing.identifier,
    "token_limit": partial(parsing.integer, minimum=0),
    "max_retries": partial(parsing.integer, minimum=0, maximum=1000),
    "tags": parsing.tags,
    "idempotency_key": parsing.idempotency_key,
    "hold": parsing.boolean,
}
NORMAL = parsing.PRIORITIES["NORMAL"]


def prepare(
    job_type: str | None, params: Any, fields: Mapping[str, Any], *, template: JobTemplate | None = None, **place: Any
) -> dict[str, Any]:
    """The values of INSERTED for one new job, or InvalidInput. `place` is for groups and schedules."""
    said = clean(fields)
    given = parsing.json_object({} if params is None else params, "params")
    preset = _from_template(template) if template is not None else {}
    handler = registry.get(parsing.identifier(template.job_type if template else job_type, "job_type"))
    # Of what was asked, not of what it came to: a template that was edited meanwhile does not make it another body.
    asked = fingerprint(template.pk if template else handler.name, given, said) if "idempotency_key" in said else ""
    given = {**preset.pop("params", {}), **given}
    handler.signature.validate(given)
    said = {**preset, **said}
    _require_possible(said)
    return _values(handler.name, given, said, handler.options, template, {"idempotency_hash": asked, **place})


def clean(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Each field through its gate; fields that were not said are left out."""
    for name in fields:
        if name not in GATES:
            raise InvalidInput(str(name)[:100], _("is not a field of a submission"), "extra_forbidden")
    return {name: GATES[name](value, name) for name, value in fields.items() if value is not None}


def row(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values in the order, and with the JSON text, that an insert wants."""
    return tuple(
        dump(values[name]) if kind == "jsonb" and values[name] is not None else values[name]
        for name, kind in INSERTED.items()
    )


def find_template(name: Any, tenant: str) -> JobTemplate:
    known = parsing.identifier(name, "template")
    template = JobTemplate.objects.using(db.alias()).filter(tenant=tenant, name=known).first()
    if template is None:
        raise InvalidInput("template", _("There is no template “%s”.") % known, "unknown_template")
    return template


def _from_template(template: JobTemplate) -> dict[str, Any]:
    names = ("priority", "resource", "target", "max_runtime_sec", "token_limit", "cost_units", "tags", "params")
    preset = {name: value for name in names if (value := getattr(template, name)) not in (None, "", [])}
    if (attempts := template.retry_policy.get("max_attempts")) is not None:
        preset["max_retries"] = attempts
    preset["tenant"] = template.tenant
    return preset


def _require_possible(said: Mapping[str, Any]) -> None:
    deadline, start = said.get("deadline_at"), said.get("not_before")
    if deadline is not None and start is not None and deadline <= start:
        raise InvalidInput("deadline_at", _("must be after not_before"), "deadline_before_start")


def _values(
    job_type: str,
    params: dict[str, Any],
    said: Mapping[str, Any],
    options: Options,
    template: JobTemplate | None,
    place: Mapping[str, Any],
) -> dict[str, Any]:
    tenant, target = said.get("tenant", "default"), said.get("target")
    resource, addon_id = said.get("resource", options.resource), said.get("addon_id", "")
    key: str | None = said.get("idempotency_key")
    hold = said.get("hold", False)
    values: dict[str, Any] = {
        "id": ids.uuid7(),
        "status": str(Status.PENDING if hold else Status.QUEUED),
        "position": said.get("position"),
        "not_before": said.get("not_before"),
        "hold": hold,
        "holds_lane": False,
        "idempotency_key": key,
        "idempotency_hash": "",
        "retry_of_id": None,
        "attempt": 1,
        "checkpoint": None,
        "job_type": job_type,
        "template_id": None if template is None else template.pk,
        "params": params,
        "tags": said.get("tags", list(options.tags)),
        "tenant": tenant,
        "target": target,
        "lane_id": None if target is None else ids.lane_id(tenant, target),
        "addon_id": addon_id,
        "resource": resource,
        "flow_id": ids.flow_id(tenant, job_type, resource, addon_id),
        "remote": options.remote,
        "base_priority": _first(said.get("priority"), options.priority, NORMAL),
        "deadline_at": said.get("deadline_at"),
        "time_sensitive": said.get("time_sensitive", False),
        "expected_duration_sec": said.get("expected_duration_sec"),
        "max_runtime_sec": said.get("max_runtime_sec", options.max_runtime_sec),
        "cost_units": _first(said.get("cost_units"), options.cost_units, 1),
        "constraints": said.get("constraints", dict(options.constraints or {})),
        "token_limit": _first(said.get("token_limit"), options.token_limit, conf.TOKEN_LIMIT),
        "max_retries": _first(said.get("max_retries"), options.max_retries, conf.RETRY_MAX_RETRIES),
        "retry_policy": {} if template is None else template.retry_policy,
        "group_id": None,
        "group_index": None,
        "schedule_id": None,
        "fire_time": None,
        "fence": 0,
    }
    return values | dict(place)


def fingerprint(what: str | UUID, params: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """Two submissions with one idempotency key must say the same."""
    body = {name: str(value) if isinstance(value, datetime | UUID) else value for name, value in said.items()}
    text = dump([str(what), _sorted(params), _sorted(body)])
    return hashlib.sha256(text.encode()).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
