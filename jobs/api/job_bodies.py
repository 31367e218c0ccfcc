"""What a caller may say about jobs: the bodies of submissions, edits and verbs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, SkipValidation, WithJsonSchema

from jobs.api import fields as f
from jobs.api.bodies import Said

EXAMPLE: dict[str, Any] = {
    "job_type": "story.generate",
    "params": {"topic": "sea"},
    "target": "book-1",
    "priority": "HIGH",
}


class JobIn(Said):
    """Exactly one of `job_type` and `template` (a template's name). Null is as good as not said."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "anyOf": [{"required": ["job_type"]}, {"required": ["template"]}],
            "examples": [EXAMPLE],
        },
    )

    job_type: f.Name | None = None
    template: f.Name | None = None
    params: f.Params | None = None
    tenant: f.Tenant | None = None
    target: f.Target | None = None
    addon_id: f.Name | None = None
    priority: f.Priority | None = None
    position: f.Position | None = None
    not_before: f.Moment | None = None
    deadline_at: f.Moment | None = None
    time_sensitive: f.Flag | None = None
    expected_duration_sec: f.Duration | None = None
    max_runtime_sec: f.Duration | None = None
    cost_units: f.CostUnits | None = None
    constraints: f.Constraints | None = None
    resource: f.Name | None = None
    token_limit: f.Tokens | None = None
    max_retries: f.Retries | None = None
    tags: f.Tags | None = None
    idempotency_key: f.Key | None = None
    hold: f.Flag | None = None


class JobsIn(Said):
    """Many jobs, all or none."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"jobs": [EXAMPLE]}]})

    jobs: Annotated[list[JobIn], SkipValidation]  # documented as such; each entry passes its gates in the service


class JobEdits(Said):
    """Null clears. Once the job was dispatched only `tags` can be changed (INV-001)."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"priority": "URGENT", "not_before": None}]}
    )

    priority: f.Priority | None = None
    not_before: f.Moment | None = None
    deadline_at: f.Moment | None = None
    time_sensitive: f.Flag | None = None
    expected_duration_sec: f.Duration | None = None
    max_runtime_sec: f.Duration | None = None
    tags: f.Tags | None = None
    params: f.Params = None
    target: f.Target | None = None


class VerbIn(Said):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"reason": "not needed any more"}]})

    reason: f.Reason = None


class RetryIn(VerbIn):
    fresh: f.Flag | None = None


class MoveIn(VerbIn):
    """Exactly one of `before`, `after` and `to`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"to": "top"}]})

    before: f.JobId | None = None
    after: f.JobId | None = None
    to: Annotated[Any, WithJsonSchema({"type": "string", "enum": ["top", "bottom"]})] | None = None
