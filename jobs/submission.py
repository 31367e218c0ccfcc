"""From what somebody asked for to the row that will be inserted.

Every field passes the gate; what was not said comes from the template, then the handler, then the settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, TypedDict
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import db, ids, parsing
from jobs.conf import conf
from jobs.engine.sql.columns import INSERTED
from jobs.engine.submit import dump
from jobs.errors import InvalidInput
from jobs.models import JobTemplate
from jobs.registry import Handler, registry
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
    return _values(handler, given, said, template, {"idempotency_hash": asked, **place})


def clean(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Each field through its gate; fields that were not said are left out."""
    for name in fields:
        if name not in GATES:
            raise InvalidInput(str(name)[:100], _("is not a field of a submission"), "extra_forbidden")
    return {name: GATES[name](value, name) for name, value in fields.items() if value is not None}


def row(values: Mapping[str, Any]) -> list[Any]:
    """The values in the order, and with the JSON text, that an insert wants."""
    ordered = [values[name] for name in INSERTED]
    for place in _JSON:
        if ordered[place] is not None:
            ordered[place] = dump(ordered[place])
    return ordered


_JSON = tuple(place for place, kind in enumerate(INSERTED.values()) if kind == "jsonb")


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
    params = preset.pop("params", {})
    return {**clean({**preset, "tenant": template.tenant}), "params": params}


def _require_possible(said: Mapping[str, Any]) -> None:
    deadline, start = said.get("deadline_at"), said.get("not_before")
    if deadline is not None and start is not None and deadline <= start:
        raise InvalidInput("deadline_at", _("must be after not_before"), "deadline_before_start")


def _values(
    handler: Handler[..., Any],
    params: dict[str, Any],
    said: Mapping[str, Any],
    template: JobTemplate | None,
    place: Mapping[str, Any],
) -> dict[str, Any]:
    values = _defaults(handler, conf.TOKEN_LIMIT, conf.RETRY_MAX_RETRIES).copy()
    values |= {"id": ids.uuid7(), "params": params, "tags": list(values["tags"])}
    if template is not None:
        values |= {"template_id": template.pk, "retry_policy": template.retry_policy}
    if said:
        _apply(values, said)
    return values | dict(place)


def _apply(values: dict[str, Any], said: Mapping[str, Any]) -> None:
    for name, value in said.items():
        values["base_priority" if name == "priority" else name] = value
    if values["hold"]:
        values["status"] = str(Status.PENDING)
    if values["target"] is not None:
        values["lane_id"] = ids.lane_id(values["tenant"], values["target"])
    values["flow_id"] = _flow(values)


@lru_cache(maxsize=4096)
def _defaults(handler: Handler[..., Any], token_limit: int | None, max_retries: int) -> dict[str, Any]:
    """A job of this type about which nothing was said. Copied, never changed."""
    options = handler.options
    values: dict[str, Any] = dict.fromkeys(INSERTED)
    values |= {
        "status": str(Status.QUEUED),
        "hold": False,
        "holds_lane": False,
        "idempotency_hash": "",
        "attempt": 1,
        "job_type": handler.name,
        "tags": list(options.tags),
        "tenant": "default",
        "addon_id": "",
        "resource": options.resource,
        "remote": options.remote,
        "base_priority": NORMAL if options.priority is None else options.priority,
        "time_sensitive": False,
        "max_runtime_sec": options.max_runtime_sec,
        "cost_units": 1 if options.cost_units is None else options.cost_units,
        "constraints": dict(options.constraints or {}),
        "token_limit": token_limit if options.token_limit is None else options.token_limit,
        "max_retries": max_retries if options.max_retries is None else options.max_retries,
        "retry_policy": {},
        "fence": 0,
    }
    values["flow_id"] = _flow(values)
    return values


def _flow(values: Mapping[str, Any]) -> int:
    return ids.flow_id(values["tenant"], values["job_type"], values["resource"], values["addon_id"])


def fingerprint(what: str | UUID, params: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """Two submissions with one idempotency key must say the same."""
    body = {name: str(value) if isinstance(value, datetime | UUID) else value for name, value in said.items()}
    text = dump([str(what), _sorted(params), _sorted(body)])
    return hashlib.sha256(text.encode()).hexdigest()


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value
