"""The columns of a job by role: statements that copy or insert them share these lists."""

from __future__ import annotations

# The columns of a submission, with their types. A retry copies all of them.
SUBMISSION_COLUMNS = {
    "job_type": "text",
    "template_id": "uuid",
    "params": "jsonb",
    "tags": "jsonb",
    "tenant": "text",
    "target": "text",
    "lane_id": "uuid",
    "addon_id": "text",
    "resource": "text",
    "flow_id": "bigint",
    "remote": "boolean",
    "base_priority": "smallint",
    "deadline_at": "timestamptz",
    "time_sensitive": "boolean",
    "expected_duration_sec": "double precision",
    "max_runtime_sec": "double precision",
    "cost_units": "smallint",
    "constraints": "jsonb",
    "token_limit": "bigint",
    "max_retries": "integer",
    "retry_policy": "jsonb",
    "group_id": "uuid",
    "group_index": "integer",
    "schedule_id": "uuid",
    "fire_time": "timestamptz",
    "fence": "bigint",  # continues the count of the retry chain
    "context": "jsonb",
    "traceparent": "text",
}
# The initial values of a new job's other columns; only raw SQL has to name them.
INITIAL_VALUES = {
    "tokens_used": "0",
    "snooze_count": "0",
    "status_reason": "''",
    "cancel_requested": "false",
    "cancel_mode": "''",
    "progress_message": "''",
}

# The columns that a claim returns to the worker, in this order.
CLAIM_COLUMNS = (
    "id",
    "lease_token",
    "lease_owner",
    "job_type",
    "params",
    "tenant",
    "target",
    "resource",
    "attempt",
    "fence",
    "max_retries",
    "retry_policy",
    "max_runtime_sec",
    "token_limit",
    "tokens_used",
    "checkpoint",
    "group_id",
    "retry_of_id",
    "context",
    "traceparent",
)
