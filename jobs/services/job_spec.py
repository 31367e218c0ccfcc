"""Build a JobSpec from a submission: validate its fields and apply the defaults.

Defaults come from the template, then from the handler, then from the settings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, TypedDict
from uuid import UUID

from django.utils.translation import gettext as _

from jobs import clock, ids
from jobs.conf import conf
from jobs.conf.rules import YEAR_SEC
from jobs.engine.job_spec import JSON_COLUMNS, dump_json
from jobs.engine.job_spec import JobSpec as JobSpec  # returned by builders, used by other apps
from jobs.errors import InvalidInput, UnknownJobType
from jobs.job_context import capture_context
from jobs.models import JobTemplate
from jobs.redaction import has_secret
from jobs.registry import Handler, HandlerOptions, registry
from jobs.states import OnConflict, Status, UniqueUntil
from jobs.validation import fields as validation
from jobs.validation.retry_policy import parse_retry_policy


class JobFields(TypedDict, total=False):
    """The fields of a submission besides job type and params. None: not given."""

    tenant: str | None
    target: str | None
    addon_id: str | None
    priority: int | str | None
    position: int | str | None
    not_before: datetime | timedelta | str | None  # a delay counts from the submission, as does "+10m"
    deadline_at: datetime | timedelta | str | None
    time_sensitive: bool | None
    expected_duration_sec: float | None
    max_runtime_sec: float | None
    cost_units: int | None
    constraints: Mapping[str, bool] | None
    resource: str | None
    token_limit: int | None
    max_retries: int | None
    retry_delay: float | None
    retry_backoff: float | None
    retry_max_delay: float | None
    retry_jitter: float | None
    retry_policy: Mapping[str, Any] | None
    tags: list[str] | tuple[str, ...] | None
    idempotency_key: str | None
    unique_key: str | None
    unique_until: str | None
    on_conflict: str | None
    hold: bool | None


POSITION_LIMIT = 2**62  # half the range of the column: jobs can always be moved before the first and after the last
_POSITION_TEXT = re.compile(r"-?[0-9]{1,19}")


def _parse_position(value: Any, field: str) -> int:
    """Return the position; it may be text, as serializers write it."""
    if isinstance(value, str) and _POSITION_TEXT.fullmatch(value):
        value = int(value)
    return validation.parse_integer(value, field, -POSITION_LIMIT, POSITION_LIMIT)


_parse_duration = partial(validation.parse_number, above=0, maximum=YEAR_SEC)
VALIDATORS: dict[str, Callable[[Any, str], Any]] = {
    "tenant": validation.parse_tenant,
    "target": validation.parse_target,
    "addon_id": validation.parse_identifier,
    "priority": validation.parse_priority,
    "position": _parse_position,
    "not_before": validation.parse_time_or_delay,
    "deadline_at": validation.parse_time_or_delay,
    "time_sensitive": validation.parse_boolean,
    "expected_duration_sec": _parse_duration,
    "max_runtime_sec": _parse_duration,
    "cost_units": partial(validation.parse_integer, minimum=0, maximum=100),
    "constraints": validation.parse_constraints,
    "resource": validation.parse_identifier,
    "token_limit": partial(validation.parse_integer, minimum=0),
    "max_retries": partial(validation.parse_integer, minimum=0, maximum=1000),
    "retry_policy": parse_retry_policy,
    "tags": validation.parse_tags,
    "idempotency_key": validation.parse_idempotency_key,
    **validation.UNIQUE_VALIDATORS,
    "hold": validation.parse_boolean,
}
DELAYED_FIELDS = ("not_before", "deadline_at")
TIME_FIELDS = (*DELAYED_FIELDS, "time_sensitive")
NORMAL_PRIORITY = validation.PRIORITIES["NORMAL"]
TEMPLATE_FIELDS = ("priority", "resource", "target", "max_runtime_sec", "token_limit", "cost_units", "tags")


class SpecBuilder:
    """Builds the specs of jobs that differ in params and idempotency key only; other fields are validated once.

    `placement` has the columns that groups and schedules set; submissions cannot.
    """

    def __init__(
        self,
        job_type: str | None,
        fields: Mapping[str, Any],
        *,
        template: JobTemplate | None = None,
        handler: Handler[..., Any] | None = None,
        **placement: Any,
    ) -> None:
        self._fields = validate_fields(fields)
        preset = _get_preset(template) if template is not None else {}
        self._preset_params: dict[str, Any] = template.params if template is not None else {}
        self._overridable = None if template is None else get_overridable(template)
        if template is not None and self._fields.get("addon_id") and has_secret(template.params):
            _require_chosen_addon(self._overridable)
        name = template.job_type if template else job_type
        self._handler = handler or registry.get(validation.parse_identifier(name, "job_type"))
        self._origin = template.pk if template else self._handler.name
        merged = resolve_delays({**preset, **self._fields})
        require_valid_times(merged)
        if template is not None:
            placement |= {"template_id": template.pk}
        placement |= _pop_unique_fields(merged, self._handler.options)
        own_policy = self._handler.options.retry_policy or {}  # the submission takes precedence, name by name
        if policy := {**own_policy, **preset.get("retry_policy", {}), **self._fields.get("retry_policy", {})}:
            merged["retry_policy"] = policy
        default = _default_spec(self._handler, conf.TOKEN_LIMIT, conf.RETRY_MAX_RETRIES)
        if context := capture_context(self._handler):
            placement["context"] = dump_json(context)
        self._spec = _apply_fields(default, merged, placement)

    def build(
        self, params: Any, key: Any = None, job_id: UUID | None = None, computed: Mapping[str, Any] | None = None
    ) -> JobSpec:
        """Build one spec. `computed` has params that the scheduler itself sets; a template cannot refuse them."""
        own_params = validation.parse_json_object({} if params is None else params, "params")
        if self._overridable is not None:
            self._require_overridable(own_params, self._overridable)
        merged = {**self._preset_params, **own_params} if self._preset_params else own_params
        if computed:
            merged = {**merged, **computed}
        spec = self._spec.copy()
        spec.params = dump_json(merged)
        self._handler.signature.validate(merged, spec.params)
        if key is not None:
            spec.idempotency_key = validation.parse_idempotency_key(key)
            spec.idempotency_hash = hash_submission(self._origin, own_params, self._fields)
        spec.id = ids.uuid7() if job_id is None else job_id
        return spec

    def _require_overridable(self, params: dict[str, Any], names: frozenset[str]) -> None:
        """Raise InvalidInput if a param differs from the template's, which permits other values for `names` only."""
        for name, value in params.items():
            is_same = name in self._preset_params and self._preset_params[name] == value
            if name not in names and not is_same:
                raise _build_not_overridable(["params", name[:100]], names)


def _require_chosen_addon(names: frozenset[str] | None) -> None:
    """Raise InvalidInput unless a run may choose the addon, whose workers get the secrets of the template."""
    if names is not None and "addon_id" not in names:
        raise _build_not_overridable(["addon_id"], names)


def _build_not_overridable(path: list[str], names: frozenset[str]) -> InvalidInput:
    message = _("cannot be set in a run of this template (overridable: %s)")
    return InvalidInput(path, message % (", ".join(sorted(names)) or _("none of its params")), "not_overridable")


def get_overridable(template: JobTemplate) -> frozenset[str] | None:
    """Return the params that a run of the template may set; None: all.

    By default none if the template contains a secret: any param beside it may name where the secret is sent.
    """
    if template.overridable is not None:
        return frozenset(template.overridable)
    return frozenset() if has_secret(template.params) else None


def build_spec(item: Mapping[str, Any]) -> JobSpec:
    """Validate one submission; `item` has the arguments of `services.jobs.enqueue`."""
    return _make_builder(item).build(item.get("params"), item.get("idempotency_key"))


def build_specs(items: Sequence[Any]) -> list[JobSpec]:
    """Validate many submissions, or raise an InvalidInput that names the wrong one by its index."""
    builders: dict[Any, SpecBuilder] = {}
    specs: list[JobSpec] = []
    try:
        for item, job_id in zip(items, ids.uuid7s(len(items)), strict=True):
            if not isinstance(item, Mapping):
                raise InvalidInput([], _("must be an object"), "dict_type")
            builder = _get_builder(builders, item)
            specs.append(builder.build(item.get("params"), item.get("idempotency_key"), job_id))
    except InvalidInput as error:
        raise error.with_prefix("jobs", len(specs)) from None
    return specs


def _get_builder(builders: dict[Any, SpecBuilder], item: Mapping[str, Any]) -> SpecBuilder:
    # The types belong to the key: 1, 1.0 and True are equal, but only one of them is valid.
    key = tuple([(name, type(value), value) for name, value in item.items() if name not in PER_JOB_FIELDS])
    try:
        if (builder := builders.get(key)) is None:
            builder = builders[key] = _make_builder(item)
    except TypeError:  # tags and constraints have no hash
        return _make_builder(item)
    return builder


def _make_builder(item: Mapping[str, Any]) -> SpecBuilder:
    job_type, name = item.get("job_type"), item.get("template")
    if (job_type is None) == (name is None):
        raise InvalidInput("job_type", _("enter either a job type or a template"), "missing")
    fields = {name: value for name, value in item.items() if name not in _NO_FIELDS}
    if name is None:
        return SpecBuilder(job_type, fields)
    tenant = validation.parse_tenant(fields.get("tenant") or "default")
    return SpecBuilder(None, fields, template=find_template(name, tenant))


PER_JOB_FIELDS = frozenset({"params", "idempotency_key"})
_NO_FIELDS = {"job_type", "template", *PER_JOB_FIELDS}


def validate_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the given fields; leave out those that are None."""
    for name in fields:
        if name not in VALIDATORS:
            raise InvalidInput(str(name)[:100], _("is not a field of a submission"), "extra_forbidden")
    clean = {name: VALIDATORS[name](value, name) for name, value in fields.items() if value is not None}
    if (attempts := clean.get("retry_policy", {}).get("max_attempts")) is not None:
        clean.setdefault("max_retries", attempts)
    return clean


def resolve_delays(fields: dict[str, Any]) -> dict[str, Any]:
    """Replace the delays among validated fields by times, counted from now by the clock of the database."""
    delays = {name: fields[name] for name in DELAYED_FIELDS if isinstance(fields.get(name), timedelta)}
    if not delays:
        return fields
    now = clock.now()
    return fields | {name: now + delay for name, delay in delays.items()}


def require_valid_times(fields: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless the times of a job fit together, given all its validated fields."""
    deadline, start = fields.get("deadline_at"), fields.get("not_before")
    if deadline is not None and start is not None and deadline <= start:
        raise InvalidInput("deadline_at", _("must be after not_before"), "deadline_before_start")
    if fields.get("time_sensitive") and deadline is None:
        raise InvalidInput("time_sensitive", _("requires deadline_at"), "deadline_missing")


def find_template(name: Any, tenant: str) -> JobTemplate:
    """Return the template of this name, or raise InvalidInput."""
    name = validation.parse_identifier(name, "template")
    template = JobTemplate.objects.filter(tenant=tenant, name=name).first()
    if template is None:
        raise InvalidInput("template", _("There is no template “%s”.") % name, "unknown_template")
    return template


def _get_preset(template: JobTemplate) -> dict[str, Any]:
    preset = {name: value for name in TEMPLATE_FIELDS if (value := getattr(template, name)) not in (None, "", [])}
    return validate_fields({**preset, "retry_policy": template.retry_policy, "tenant": template.tenant})


def _pop_unique_fields(fields: dict[str, Any], options: HandlerOptions) -> dict[str, str]:
    """Remove the fields of a unique job, and return them with their defaults; nothing without a unique key."""
    given = {name: fields.pop(name) for name in validation.UNIQUE_VALIDATORS if name in fields}
    if (key := given.get("unique_key", options.unique_key)) is None:
        for name in given:
            raise InvalidInput(name, _("requires unique_key"), "unique_key_missing")
        return {}
    until = given.get("unique_until", options.unique_until) or UniqueUntil.START.value
    on_conflict = given.get("on_conflict", options.on_conflict) or OnConflict.RETURN.value
    return {"unique_key": key, "unique_until": until, "on_conflict": on_conflict}


def _apply_fields(spec: JobSpec, fields: Mapping[str, Any], placement: Mapping[str, Any]) -> JobSpec:
    """Return a copy of `spec` with these validated fields and the columns that depend on them."""
    if not fields and not placement:
        return spec
    spec = spec.copy()
    for name, value in fields.items():
        column = "base_priority" if name == "priority" else name
        setattr(spec, column, dump_json(value) if name in JSON_COLUMNS else value)
    if spec.hold:
        spec.status = Status.PENDING.value
    if spec.target is not None:
        spec.lane_id = ids.derive_lane_id(spec.tenant, spec.target)
    spec.flow_id = ids.derive_flow_id(spec.tenant, spec.job_type, spec.resource, spec.addon_id)
    for name, value in placement.items():
        setattr(spec, name, value)
    return spec


@lru_cache(maxsize=4096)
def _default_spec(handler: Handler[..., Any], token_limit: int | None, max_retries: int) -> JobSpec:
    """Return the spec of a job of this type without given fields. Callers copy it and never change it."""
    options = handler.options
    return JobSpec(
        id=UUID(int=0),  # each copy gets its own
        job_type=handler.name,
        flow_id=ids.derive_flow_id("default", handler.name, options.resource, ""),
        tags=dump_json(options.tags),
        resource=options.resource,
        remote=options.remote,
        base_priority=NORMAL_PRIORITY if options.priority is None else options.priority,
        max_runtime_sec=options.max_runtime_sec,
        cost_units=1 if options.cost_units is None else options.cost_units,
        constraints=dump_json(dict(options.constraints or {})),
        token_limit=token_limit if options.token_limit is None else options.token_limit,
        max_retries=max_retries if options.max_retries is None else options.max_retries,
    )


def get_handler(name: str, *, is_remote: bool) -> Handler[..., Any]:
    """Return the handler of a job type. One that is not registered here can be remote: it accepts any params."""
    try:
        return registry.get(name)
    except UnknownJobType:
        if not is_remote:
            raise
        return _make_opaque_handler(name)


def _accept_params(**params: Any) -> None:
    """Accept any params: only remote workers know those of the type."""


_OPAQUE_HANDLER: Handler[..., Any] = Handler(_accept_params, None, HandlerOptions(remote=True))


@lru_cache(maxsize=1024)  # the default spec of a handler is cached by its identity
def _make_opaque_handler(name: str) -> Handler[..., Any]:
    handler = copy(_OPAQUE_HANDLER)
    handler.name = name
    return handler


def hash_submission(origin: str | UUID, params: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Return the digest by which submissions with the same idempotency key are compared."""
    return hashlib.sha256(_CANONICAL.encode([str(origin), params, fields]).encode()).hexdigest()


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
