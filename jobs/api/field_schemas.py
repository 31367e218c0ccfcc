"""JSON Schemas of the fields of a job: they document `jobs.validation.fields` and `jobs.services.job_spec`.

Most fields have the type `Any`, since the services validate their values. A schema may allow more than its validator,
never less.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from jobs import states
from jobs.api.request_params import validated_by
from jobs.api.schemas import FREE_OBJECT
from jobs.conf.rules import YEAR_SEC
from jobs.services.job_spec import POSITION_LIMIT
from jobs.services.jobs import REASON_LENGTH
from jobs.validation import fields
from jobs.validation.fields import (
    CONSTRAINTS,
    MAX_DURATION_LENGTH,
    MAX_PARAM_NAMES,
    MAX_TAGS,
    NAME_LENGTH,
    PRIORITIES,
    TAG_LENGTH,
    UNIQUE_KEY_LENGTH,
)
from jobs.validation.retry_policy import MAX_BACKOFF

INT64 = 2**63 - 1
NULL = {"type": "null"}
NAME = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH}
TENANT = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}
TARGET = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH, "pattern": "^[^/]*$"}
TAG = {"type": "string", "minLength": 1, "maxLength": TAG_LENGTH}
KEY = {"type": "string", "pattern": "^[ -~]{1,255}$"}
MOMENT = {
    "type": "string",
    "format": "date-time",
    "description": "ISO 8601 with an offset.",
    "examples": ["2030-01-31T12:00:00Z"],
}
TIME_OR_DELAY = {
    "anyOf": [
        {"type": "string", "format": "date-time"},
        {"type": "string", "pattern": r"^\+([0-9]{1,9}(\.[0-9]{1,6})?[smhdw])+$", "maxLength": MAX_DURATION_LENGTH + 1},
    ],
    "description": "ISO 8601 with an offset; or a delay from now, such as `+10m` (s, m, h, d, w).",
    "examples": ["2030-01-31T12:00:00Z", "+10m"],
}
DURATION = {"type": "number", "exclusiveMinimum": 0, "maximum": YEAR_SEC}


def _validate_reason(value: Any, field: Any) -> str | None:
    """Return the reason. It is validated here because the services treat an empty value as no reason."""
    return None if value is None else fields.parse_text(value, field, max_length=REASON_LENGTH, allow_empty=True)


def _ignore_case(name: str) -> str:
    """Return a pattern that matches the upper-case name in any case: JSON Schema has no flags."""
    return "".join(f"[{letter}{letter.lower()}]" for letter in name)


PRIORITY = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": 100},
        {"type": "string", "pattern": f"^({'|'.join(map(_ignore_case, PRIORITIES))})$"},
    ],
    "description": ", ".join(f"{name} is {value}" for name, value in PRIORITIES.items()) + ".",
    "examples": [75, "HIGH"],
}

POSITION = {
    "anyOf": [
        {"type": "integer", "minimum": -POSITION_LIMIT, "maximum": POSITION_LIMIT},
        {"type": "string", "pattern": "^-?[0-9]{1,19}$"},
    ],
    "description": "A whole number, or the same as text, as in responses.",
    "examples": ["1837986516353278976"],
}

Name = Annotated[Any, WithJsonSchema(NAME)]
Tenant = Annotated[Any, WithJsonSchema(TENANT)]
Target = Annotated[Any, WithJsonSchema(TARGET)]
Params = Annotated[Any, WithJsonSchema(FREE_OBJECT)]
Priority = Annotated[Any, WithJsonSchema(PRIORITY)]
Position = Annotated[Any, WithJsonSchema(POSITION)]
TimeOrDelay = Annotated[Any, WithJsonSchema(TIME_OR_DELAY)]
Moment = Annotated[Any, WithJsonSchema(MOMENT)]
Flag = Annotated[Any, WithJsonSchema({"type": "boolean"})]
Duration = Annotated[Any, WithJsonSchema(DURATION)]
CostUnits = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 100})]
FLAGS = {name: {"type": "boolean"} for name in CONSTRAINTS}
Constraints = Annotated[Any, WithJsonSchema({"type": "object", "properties": FLAGS, "additionalProperties": False})]
Tokens = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": INT64})]
Retries = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 1000})]
Delay = Annotated[Any, WithJsonSchema({"type": "number", "minimum": 0, "maximum": YEAR_SEC})]
_DELAY = {"type": ["number", "null"], "minimum": 0, "maximum": YEAR_SEC}
RETRY_POLICY = {
    "max_attempts": {"type": ["integer", "null"], "minimum": 0, "maximum": 1000},
    "base_sec": _DELAY,
    "backoff": {"type": ["number", "null"], "minimum": 1, "maximum": MAX_BACKOFF},
    "max_sec": _DELAY,
    "jitter": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
}
RetryPolicy = Annotated[
    Any, WithJsonSchema({"type": "object", "properties": RETRY_POLICY, "additionalProperties": False})
]
Tags = Annotated[Any, WithJsonSchema({"type": "array", "items": TAG, "maxItems": MAX_TAGS})]
ParamNames = Annotated[Any, WithJsonSchema({"type": "array", "items": NAME, "maxItems": MAX_PARAM_NAMES})]
Key = Annotated[Any, WithJsonSchema(KEY)]
UniqueKey = Annotated[Any, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": UNIQUE_KEY_LENGTH})]
UniqueUntil = Annotated[Any, WithJsonSchema({"type": "string", "enum": [str(until) for until in states.UniqueUntil]})]
OnConflict = Annotated[Any, WithJsonSchema({"type": "string", "enum": [str(choice) for choice in states.OnConflict]})]
Reason = Annotated[
    str | None, *validated_by(_validate_reason, {"anyOf": [{"type": "string", "maxLength": REASON_LENGTH}, NULL]})
]
JobId = Annotated[Any, WithJsonSchema({"type": "string", "format": "uuid"})]
