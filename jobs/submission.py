"""From what somebody asked for to the row that will be inserted.

Every field passes the gate; what was not said comes from the template, then the handler, then the settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, TypedDict
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import ids, parsing
from jobs.conf import conf
from jobs.engine.sql.batch import AT, Row
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
    shared = {name: value for name, value in fields.items() if name != "idempotency_key"}
    return Form(job_type, shared, template=template, **place).values(params, fields.get("idempotency_key"))


class Form:
    """What submissions of one shape say alike, looked at once: everything but params and idempotency key."""

    def __init__(
        self,
        job_type: str | None,
        fields: Mapping[str, Any],
        *,
        template: JobTemplate | None = None,
        handler: Handler[..., Any] | None = None,
        **place: Any,
    ) -> None:
        self._said = clean(fields)
        preset = _from_template(template) if template is not None else {}
        self._handler = handler or registry.get(
            parsing.identifier(template.job_type if template else job_type, "job_type")
        )
        self._what = template.pk if template else self._handler.name
        self._preset: dict[str, Any] = preset.pop("params", {})
        said = {**preset, **self._said}
        _require_possible(said)
        self._values = _values(self._handler, said, template) | place
        self._row: Row | None = None

    def values(self, params: Any, key: Any = None) -> dict[str, Any]:
        asked, given, _text = self._checked(params)
        values = {**self._values, "id": ids.uuid7(), "params": given}
        if key is not None:
            values["idempotency_key"] = parsing.idempotency_key(key)
            values["idempotency_hash"] = fingerprint(self._what, asked, self._said)
        return values

    def row(self, params: Any, key: Any = None) -> Row:
        """As `row(self.values(…))`, but for the id, which is still missing."""
        if self._row is None:
            self._row = row(self._values)
        asked, _given, text = self._checked(params)
        new = self._row.copy()
        new[PARAMS] = text
        if key is not None:
            new[KEY] = parsing.idempotency_key(key)
            new[HASH] = fingerprint(self._what, asked, self._said)
        return new

    def _checked(self, params: Any) -> tuple[dict[str, Any], dict[str, Any], str]:
        """The params as they were said, as they will be, and those as JSON."""
        asked = parsing.json_object({} if params is None else params, "params")
        given = {**self._preset, **asked} if self._preset else asked
        text = dump(given)
        self._handler.signature.validate(given, text)
        return asked, given, text


ID, PARAMS, KEY, HASH = (AT[name] for name in ("id", "params", "idempotency_key", "idempotency_hash"))


class Forms:
    """Rows for many submissions; those of one shape share a form."""

    VARYING = frozenset({"params", "idempotency_key"})

    def __init__(self) -> None:
        self._known: dict[Any, Form] = {}

    def row(self, item: Mapping[str, Any]) -> Row:
        return self._form(item).row(item.get("params"), item.get("idempotency_key"))

    def _form(self, item: Mapping[str, Any]) -> Form:
        # With their types: 1, 1.0 and True are equal, but not to a gate.
        shape = tuple([(name, type(value), value) for name, value in item.items() if name not in self.VARYING])
        try:
            if (known := self._known.get(shape)) is None:
                known = self._known[shape] = form_of(item)
        except TypeError:  # tags and constraints have no hash
            return form_of(item)
        return known


def rows(items: Sequence[Any]) -> list[Row]:
    """A row for each of many submissions, or InvalidInput that says which one is wrong."""
    forms, made = Forms(), []
    try:
        for item in items:
            if not isinstance(item, Mapping):
                raise InvalidInput([], _("must be an object"), "dict_type")
            made.append(forms.row(item))
    except InvalidInput as error:
        raise error.under("jobs", len(made)) from None
    for new, job_id in zip(made, ids.uuid7s(len(made)), strict=True):
        new[ID] = job_id
    return made


def form_of(item: Mapping[str, Any]) -> Form:
    """`item` is what `services.enqueue` takes, as a mapping."""
    job_type, name = item.get("job_type"), item.get("template")
    if (job_type is None) == (name is None):
        raise InvalidInput("job_type", _("say either a job type or a template"), "missing")
    fields = {name: value for name, value in item.items() if name not in _NO_FIELDS}
    if name is None:
        return Form(job_type, fields)
    return Form(None, fields, template=find_template(name, parsing.tenant(fields.get("tenant") or "default")))


_NO_FIELDS = {"job_type", "template", *Forms.VARYING}


def clean(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Each field through its gate; fields that were not said are left out."""
    for name in fields:
        if name not in GATES:
            raise InvalidInput(str(name)[:100], _("is not a field of a submission"), "extra_forbidden")
    return {name: GATES[name](value, name) for name, value in fields.items() if value is not None}


def row(values: Mapping[str, Any]) -> Row:
    """The values in the order, and with the JSON text, that an insert wants."""
    ordered = [values[name] for name in INSERTED]
    for place in _JSON:
        if ordered[place] is not None:
            ordered[place] = dump(ordered[place])
    return ordered


_JSON = tuple(place for place, kind in enumerate(INSERTED.values()) if kind == "jsonb")


def find_template(name: Any, tenant: str) -> JobTemplate:
    known = parsing.identifier(name, "template")
    template = JobTemplate.objects.filter(tenant=tenant, name=known).first()
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


def _values(handler: Handler[..., Any], said: Mapping[str, Any], template: JobTemplate | None) -> dict[str, Any]:
    values = _defaults(handler, conf.TOKEN_LIMIT, conf.RETRY_MAX_RETRIES).copy()
    values["tags"] = list(values["tags"])
    if template is not None:
        values |= {"template_id": template.pk, "retry_policy": template.retry_policy}
    if said:
        _apply(values, said)
    return values


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
    return hashlib.sha256(_CANONICAL.encode([str(what), params, said]).encode()).hexdigest()


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
