"""The schedule of a job, and what the database enforces beyond the models: quick checks, the chain's index, triggers."""

import django.db.models.deletion
from django.db import migrations, models

from jobs.migrations._operations import InstallTriggers, VendorSQL

# The models' checks under the same names, as PostgreSQL evaluates them fastest: it prepares each of them anew for every
# statement.
CHECKS = {
    "jobscheduler_job": {
        "job_status_known": (
            "status = ANY('{PENDING,QUEUED,DISPATCHING,RUNNING,PAUSED,COMPLETED,FAILED,SKIPPED,CANCELLED}'::text[])"
        ),
        "job_gate_iff_queued": "gate BETWEEN 0 AND 3 AND (status = 'QUEUED') = (gate > 0)",
        "job_lease_iff_running": (
            "num_nulls(lease_owner, lease_token, lease_expires_at) = CASE WHEN status = 'RUNNING' THEN 0 ELSE 3 END"
        ),
        "job_reserved_iff_dispatching": "(status = 'DISPATCHING') = (reserved_until IS NOT NULL)",
        "job_started_is_dispatched": "dispatched_at IS NOT NULL OR status <> ALL('{DISPATCHING,RUNNING}'::text[])",
        "job_stop_mode": (
            "cancel_mode = ANY(CASE WHEN cancel_requested THEN '{CANCEL,PAUSE}'::text[] ELSE '{\"\"}'::text[] END)"
        ),
        "job_lane_iff_target": "(target IS NULL) = (lane_id IS NULL) AND (target IS NOT NULL OR NOT holds_lane)",
        "job_place_iff_group": "(group_id IS NULL) = (group_index IS NULL) AND group_index >= 0",
        "job_priority_range": (
            "least(priority, base_priority, cost_units) >= 0 AND greatest(priority, base_priority, cost_units) <= 100"
        ),
        "job_counts_in_range": "attempt >= 1 AND least(max_retries, tokens_used) >= 0 AND progress BETWEEN 0 AND 1",
        "job_retry_not_of_itself": "retry_of_id <> id",
        "job_only_failed_resolved": "resolved_at IS NULL OR status = 'FAILED'",
    },
    "jobscheduler_jobrun": {
        "jobrun_status_known": "status = ANY('{RUNNING,COMPLETED,FAILED,SKIPPED,CANCELLED}'::text[])",
        "jobrun_open_until_finished": "(status = 'RUNNING') = (finished_at IS NULL)",
    },
}


def replace_checks(table: str, checks: dict[str, str]) -> str:
    steps = [f"DROP CONSTRAINT {name}, ADD CONSTRAINT {name} CHECK ({rule})" for name, rule in checks.items()]
    return f"ALTER TABLE {table} {', '.join(steps)}"


# Only retries are in the index that keeps chains linear: to all other jobs it would be a cost at every transition.
RETRY_OF = "jobscheduler_job_retry_of_id_key"
INDEX_OF_RETRIES = (
    f"ALTER TABLE jobscheduler_job DROP CONSTRAINT {RETRY_OF}",
    f"CREATE UNIQUE INDEX {RETRY_OF} ON jobscheduler_job (retry_of_id) WHERE retry_of_id IS NOT NULL",
)
INDEX_OF_ALL = (
    f"DROP INDEX {RETRY_OF}",
    f"ALTER TABLE jobscheduler_job ADD CONSTRAINT {RETRY_OF} UNIQUE (retry_of_id)",
)

# Heartbeats are HOT updates only where pages have room; dead rows at the head of the queue slow down every claim.
STORAGE = {
    "jobscheduler_job": {
        "fillfactor": "80",
        "autovacuum_vacuum_scale_factor": "0.02",
        "autovacuum_analyze_scale_factor": "0.05",
    },
    "jobscheduler_jobrun": {"fillfactor": "85", "autovacuum_vacuum_scale_factor": "0.05"},
    "jobscheduler_lanemark": {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "1000"},
}


def set_storage(table: str, options: dict[str, str]) -> str:
    return f"ALTER TABLE {table} SET ({', '.join(f'{name} = {value}' for name, value in options.items())})"


def reset_storage(table: str, options: dict[str, str]) -> str:
    return f"ALTER TABLE {table} RESET ({', '.join(options)})"


class Migration(migrations.Migration):
    dependencies = [
        ("jobscheduler_jobs", "0001_initial"),
        ("jobscheduler_schedules", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="schedule",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="jobs",
                to="jobscheduler_schedules.schedule",
                verbose_name="schedule",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("schedule__isnull", False)), fields=["schedule", "id"], name="job_schedule"
            ),
        ),
        VendorSQL(
            forwards={"postgresql": [replace_checks(table, checks) for table, checks in CHECKS.items()]},
            backwards={},  # the rules of the models under their names: nothing to take back
        ),
        VendorSQL(forwards={"postgresql": INDEX_OF_RETRIES}, backwards={"postgresql": INDEX_OF_ALL}),
        VendorSQL(
            forwards={"postgresql": [set_storage(table, options) for table, options in STORAGE.items()]},
            backwards={"postgresql": [reset_storage(table, options) for table, options in STORAGE.items()]},
        ),
        InstallTriggers(),
    ]
