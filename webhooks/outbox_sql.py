"""The outbox in SQL, for PostgreSQL: endpoints are looked up and rows written by the server itself.

Either as a statement of its own, or as a part of the statement that makes the moves.
"""

from __future__ import annotations

from functools import cache

from jobs.models import Job, JobRun, JobTemplate
from jobs.states import Status
from webhooks import events, snapshots
from webhooks.bundles import NOBODY
from webhooks.models import WebhookAudience, WebhookBundle, WebhookEndpoint, WebhookMessage

NOW = "statement_timestamp()"
_TOLD_AS = {
    Status.COMPLETED: events.COMPLETED,
    Status.FAILED: events.FAILED,
    Status.SKIPPED: events.SKIPPED,
    Status.CANCELLED: events.CANCELLED,
}
_ENDPOINT, _AUDIENCE = WebhookEndpoint._meta.db_table, WebhookAudience._meta.db_table
_MESSAGE, _BUNDLE = WebhookMessage._meta.db_table, WebhookBundle._meta.db_table


@cache
def insert() -> str:
    """A statement: JSON of (id, job_id, event, tenant, ended, retried_by) in, the events that somebody wanted out."""
    job = ", ".join(f"j.{name}" for name in snapshots.JOB)
    run = ", ".join(f"r.{name}" for name in snapshots.RUN)
    return f"""
    WITH told AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%s::json)
               AS t(id uuid, job_id uuid, event text, tenant text, ended boolean, retried_by uuid)
    ){_wanted("SELECT DISTINCT tenant, event FROM told")},
    told_of AS (
        INSERT INTO {_MESSAGE} (id, tenant, event, job_id, retried_by, at, audience_id, snapshot)
        SELECT t.id, t.tenant, t.event, t.job_id, t.retried_by, {NOW}, w.audience,
               CASE WHEN NOT t.ended THEN (
                   SELECT json_build_object(
                       'job', (SELECT row_to_json(s) FROM (SELECT {job}) s),
                       'run', (SELECT row_to_json(s) FROM (
                           SELECT {run} FROM {JobRun._meta.db_table} r WHERE r.job_id = j.id) s),
                       'template', (SELECT name FROM {JobTemplate._meta.db_table} WHERE id = j.template_id))::text
                   FROM {Job._meta.db_table} j WHERE j.id = t.job_id) END
        FROM told t JOIN wanted w ON w.tenant = t.tenant AND w.event = t.event
    )
    SELECT DISTINCT event FROM wanted
    """  # noqa: S608 — our own words


@cache
def along_ends() -> str:
    """A bundle for each event, of the rows of `ended`; see `jobs.hooks.Interest`."""
    event = " ".join(f"WHEN '{status}' THEN '{name}'" for status, name in _TOLD_AS.items())
    return f""",
    told AS MATERIALIZED (
        SELECT id, tenant, CASE status {event} END AS event, CASE WHEN retried THEN retry_id END AS retried_by
        FROM ended
    ){_wanted("SELECT DISTINCT tenant, event FROM told")},
    told_of AS (
        INSERT INTO {_BUNDLE} (tenant, event, at, audience_id, jobs, retried_by)
        SELECT w.tenant, w.event, {NOW}, w.audience, string_agg(uuid_send(t.id), ''),
               CASE WHEN count(t.retried_by) > 0 THEN string_agg(uuid_send(coalesce(t.retried_by, '{NOBODY}')), '') END
        FROM told t JOIN wanted w ON w.tenant = t.tenant AND w.event = t.event
        GROUP BY w.tenant, w.event, w.audience
    )"""  # noqa: S608


@cache
def along_claims() -> str:
    """For the rows of `took`, with a snapshot of all that does not stay as it is once a job has been dispatched."""
    from jobs.engine.sql.postgres_moves import KEPT_ARTIFACTS

    lists = {name: "max" if name in snapshots.FOR_ALL else "json_agg" for name in snapshots.CLAIMED}
    columns = ", ".join(f"'{name}', {gather}(took.{name})" for name, gather in lists.items())
    asked = f"SELECT DISTINCT tenant, '{events.STARTED}' AS event FROM took"  # noqa: S608 — our own words
    return f"""{_wanted(asked, of="_start")},
    told_of_start AS (
        INSERT INTO {_BUNDLE} (tenant, event, at, audience_id, jobs, snapshots)
        SELECT w.tenant, w.event, {NOW}, w.audience, string_agg(uuid_send(took.id), ''),
               json_build_object({columns}, 'artifacts', json_agg({KEPT_ARTIFACTS}))::text
        FROM took JOIN wanted_start w ON w.tenant = took.tenant
        GROUP BY w.tenant, w.event, w.audience
    )"""  # noqa: S608


def _wanted(asked: str, of: str = "") -> str:
    """Who wants which of the asked (tenant, event), with the audience that they are; a new one is written down.

    What belongs to a claim has names `of` its own, for it may be one statement with the end of other jobs.
    """
    return f""",
    wanting{of} AS MATERIALIZED (
        SELECT t.tenant, t.event, string_agg(uuid_send(e.id), ''::bytea ORDER BY e.id) AS endpoints
        FROM ({asked}) t
        JOIN {_ENDPOINT} e ON e.enabled AND e.tenant = t.tenant
             AND e.events ?| ARRAY[t.event, split_part(t.event, '.', 1) || '.*', '*']
        GROUP BY t.tenant, t.event
    ),
    wanted{of} AS MATERIALIZED (SELECT tenant, event, endpoints, md5(endpoints)::uuid AS audience FROM wanting{of}),
    audience{of} AS (
        INSERT INTO {_AUDIENCE} (id, endpoints)
        SELECT DISTINCT w.audience, w.endpoints FROM wanted{of} w
        WHERE NOT EXISTS (SELECT 1 FROM {_AUDIENCE} a WHERE a.id = w.audience)
        ORDER BY 1 ON CONFLICT DO NOTHING
    )"""  # noqa: S608
