"""Raw SQL against the scheduler's tables, in words that both databases understand."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Model

TRIGGERS = {
    "jobscheduler_inv_001": "jobscheduler_job",
    "jobscheduler_end_is_final": "jobscheduler_job",
    "jobscheduler_chain": "jobscheduler_job",
    "jobscheduler_inv_006_member": "jobscheduler_job",
    "jobscheduler_inv_002": "jobscheduler_jobrun",
    "jobscheduler_append_only": "jobscheduler_jobevent",
    "jobscheduler_keep_event": "jobscheduler_jobevent",
    "jobscheduler_activity_append_only": "jobscheduler_activity",
    "jobscheduler_keep_activity": "jobscheduler_activity",
    "jobscheduler_inv_006": "jobscheduler_jobgroup",
}
OUTBOX_TRIGGERS = {  # of the webhooks: they refuse nothing
    "jobscheduler_webhook_events": "jobscheduler_jobevent",
    "jobscheduler_webhook_group": "jobscheduler_jobgroup",
    "jobscheduler_webhook_endpoint": "jobscheduler_webhookendpoint",
}
TAG_TRIGGERS = {f"jobscheduler_tags_{event}": "jobscheduler_job" for event in ("inserted", "updated", "deleted")}
REPLACEABLE = (
    *("jobscheduler_job", "jobscheduler_jobrun", "jobscheduler_jobevent", "jobscheduler_jobgroup"),
    "jobscheduler_activity",
)
ONLY_ON_POSTGRES = {  # there, a trigger is spared those who write other columns
    "jobscheduler_inv_001_dispatch": "jobscheduler_job",
    "jobscheduler_inv_002_start": "jobscheduler_jobrun",
}
ONLY_ON_SQLITE = {
    "jobscheduler_inv_006_moved": "jobscheduler_job",  # there, a trigger hears of one kind of event
    **{f"{table}_not_replaced": table for table in REPLACEABLE},
}


def execute(sql: str, params: dict[str, Any]) -> int:
    """Run one statement with everything checked at once that would be checked at the commit; returns its row count."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, {name: to_stored_value(value) for name, value in params.items()})
        touched: int = cursor.rowcount
        connection.check_constraints()
    return touched


def to_stored_value(value: Any) -> Any:
    """A parameter as this database keeps it."""
    if connection.vendor == "sqlite" and isinstance(value, UUID):
        return value.hex
    if connection.vendor == "sqlite" and isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value


def copy_row(model: type[Model], source: str = "%(id)s", **changes: str) -> str:
    """An INSERT of one more row like the one whose key is `source`, with these columns (as SQL) different."""
    table, key = model._meta.db_table, str(model._meta.pk.column)
    columns = [str(field.column) for field in model._meta.concrete_fields]
    if model._meta.auto_field is not None:
        columns.remove(key)
    picked = [changes.get(column, column) for column in columns]
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(picked)} FROM {table} WHERE {key} = {source}"


def existing_triggers() -> dict[str, str]:
    """The triggers of ours that this database has, and the table of each."""
    sql = {
        "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'jobscheduler%%'",
        "postgresql": "SELECT tgname, tgrelid::regclass::text FROM pg_trigger"
        " WHERE NOT tgisinternal AND tgenabled = 'O' AND tgname LIKE 'jobscheduler%%'",
    }
    with connection.cursor() as cursor:
        cursor.execute(sql[connection.vendor], [])
        return dict(cursor.fetchall())


def drop_trigger(name: str, table: str) -> None:
    connection.check_constraints()  # PostgreSQL drops no trigger of a table that has checks pending
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER {name}" + (f" ON {table}" if connection.vendor == "postgresql" else ""))
