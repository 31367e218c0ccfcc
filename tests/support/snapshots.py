"""All stored rows as plain values, to compare before and after."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import connection
from django.db.models import Model

from jobs.models import Job, JobEvent

APP_LABELS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")


def dump_tables() -> dict[str, list[dict[str, Any]]]:
    """Return every row of every table of ours, by the name of the model."""
    models = [model for label in APP_LABELS for model in apps.get_app_config(label).get_models()]
    with connection.cursor() as cursor:
        return {model.__name__: _dump_table(cursor, model) for model in models}


def dump_all_but_tokens() -> dict[str, list[dict[str, Any]]]:
    """Return all rows but those of API tokens, which record their last use, of activities about them and of the counts
    of unknown tokens."""
    tables = dump_tables()
    tables["Activity"] = [row for row in tables["Activity"] if row["object_kind"] != "token"]
    return {model: rows for model, rows in tables.items() if model not in ("ApiToken", "FailedAttempt")}


def _dump_table(cursor: Any, model: type[Model]) -> list[dict[str, Any]]:
    cursor.execute(f'SELECT * FROM "{model._meta.db_table}" ORDER BY "{model._meta.pk.column}"')
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def list_events(job: Job) -> list[JobEvent]:
    """Return the audit events of a job, oldest first."""
    return list(JobEvent.objects.filter(job_id=job.pk).order_by("id"))


def list_event_kinds(job: Job) -> list[str]:
    return [event.kind for event in list_events(job)]
