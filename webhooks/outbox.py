"""The triggers that fill the outbox: they insert a message for each event with a subscription, in its transaction.

Every transition, by code or by SQL, writes a row to the job event table, where the trigger is. The triggers of both
databases are rendered from `webhooks.events.EVENT_OF`. Events older than an hour (restores, loaddata) give no message.
The tenant is the job's.
"""

from __future__ import annotations

from jobs.models import Job, JobEvent, JobGroup
from jobs.triggers import DatabaseTrigger, Function, TriggerSet, build_or_chain
from webhooks.events import EVENT_OF, GROUP_FINISHED
from webhooks.models import WebhookEndpoint, WebhookMessage, WebhookSubscription

EVENT, JOB, GROUP = JobEvent._meta.db_table, Job._meta.db_table, JobGroup._meta.db_table
ENDPOINT, SUBSCRIPTION = WebhookEndpoint._meta.db_table, WebhookSubscription._meta.db_table
MESSAGE = WebhookMessage._meta.db_table


def _event_of(row: str) -> str:
    """Return the SQL expression for the webhook event that a row of the event table is; NULL for none."""
    cases = " ".join(
        f"WHEN {row}.kind = '{transition.kind}' AND {row}.to_status = '{transition.to_status}' THEN '{event}'"
        for transition, event in EVENT_OF.items()
    )
    return f"CASE {cases} END"


KINDS = sorted({str(transition.kind) for transition in EVENT_OF})
KIND_LIST = ", ".join(f"'{kind}'" for kind in KINDS)
OPEN = "('PENDING', 'RUNNING')"
GROUP_ENDS = f"OLD.status IN {OPEN} AND NEW.status NOT IN {OPEN}"

# ---------------------------------------------------------------------- PostgreSQL

# PostgreSQL plans the statement once a session, for the rows of its first run. OFFSET 0 keeps the subqueries from being
# joined: look-ups stay by index, row by row.
ON_EVENTS = Function(
    "jobscheduler_webhook_events",
    f"""
    BEGIN
        IF EXISTS (SELECT 1 FROM {SUBSCRIPTION} WHERE until IS NULL) THEN
            INSERT INTO {MESSAGE} (event_id, tenant, event, job_id, at)
            SELECT id, tenant, event, job_id, at
            FROM (
                SELECT e.id, e.event, e.job_id, e.at, (SELECT j.tenant FROM {JOB} j WHERE j.id = e.job_id) AS tenant
                FROM (
                    SELECT i.id, i.job_id, i.at, {_event_of("i")} AS event
                    FROM inserted i
                    WHERE i.kind IN ({KIND_LIST}) AND i.at > statement_timestamp() - interval '1 hour'
                    OFFSET 0
                ) e
                OFFSET 0
            ) found
            WHERE EXISTS (
                SELECT 1 FROM {SUBSCRIPTION} s
                WHERE s.event = found.event AND s.tenant = found.tenant AND s.until IS NULL
            )
            ON CONFLICT (event_id) DO NOTHING;
        END IF;
        RETURN NULL;
    END """,  # noqa: S608 — constants only
)
ON_GROUP = Function(
    "jobscheduler_webhook_group",
    f"""
    BEGIN
        INSERT INTO {MESSAGE} (tenant, event, group_id, group_status, group_round, at)
        SELECT NEW.tenant, '{GROUP_FINISHED}', NEW.id, NEW.status, NEW.round, NEW.finished_at
        WHERE NEW.finished_at > statement_timestamp() - interval '1 hour' AND EXISTS (
            SELECT 1 FROM {SUBSCRIPTION} s
            WHERE s.tenant = NEW.tenant AND s.event = '{GROUP_FINISHED}' AND s.until IS NULL
        );
        RETURN NULL;
    END """,  # noqa: S608
)
ON_ENDPOINT = Function(
    "jobscheduler_webhook_endpoint",
    f"""
    BEGIN
        DELETE FROM {SUBSCRIPTION} WHERE endpoint_id = OLD.id;
        RETURN NULL;
    END """,  # noqa: S608
)
POSTGRESQL = tuple(
    DatabaseTrigger(name, table, f"CREATE TRIGGER {name} {condition} EXECUTE FUNCTION {name}()", name)
    for name, table, condition in (
        (ON_EVENTS.name, EVENT, f"AFTER INSERT ON {EVENT} REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT"),
        (ON_GROUP.name, GROUP, f"AFTER UPDATE OF status ON {GROUP} FOR EACH ROW WHEN ({GROUP_ENDS})"),
        (ON_ENDPOINT.name, ENDPOINT, f"AFTER DELETE ON {ENDPOINT} FOR EACH ROW"),
    )
)

# ---------------------------------------------------------------------- SQLite

AN_HOUR_AGO = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 hour')"
SQLITE = (
    DatabaseTrigger(
        "jobscheduler_webhook_events",
        EVENT,
        f"""
        CREATE TRIGGER jobscheduler_webhook_events AFTER INSERT ON {EVENT} FOR EACH ROW
        WHEN {build_or_chain("NEW.kind", KINDS)} AND EXISTS (SELECT 1 FROM {SUBSCRIPTION} WHERE until IS NULL)
        BEGIN
            INSERT INTO {MESSAGE} (event_id, tenant, event, job_id, at)
            SELECT NEW.id, j.tenant, {_event_of("NEW")}, NEW.job_id, NEW.at
            FROM {JOB} j
            WHERE j.id = NEW.job_id AND NEW.at > {AN_HOUR_AGO} AND EXISTS (
                SELECT 1 FROM {SUBSCRIPTION} s
                WHERE s.tenant = j.tenant AND s.event = {_event_of("NEW")} AND s.until IS NULL
            )
            ON CONFLICT DO NOTHING;
        END""",  # noqa: S608
    ),
    DatabaseTrigger(
        "jobscheduler_webhook_group",
        GROUP,
        f"""
        CREATE TRIGGER jobscheduler_webhook_group AFTER UPDATE OF status ON {GROUP} FOR EACH ROW
        WHEN {GROUP_ENDS} AND NEW.finished_at > {AN_HOUR_AGO} AND EXISTS (
            SELECT 1 FROM {SUBSCRIPTION} s
            WHERE s.tenant = NEW.tenant AND s.event = '{GROUP_FINISHED}' AND s.until IS NULL
        )
        BEGIN
            INSERT INTO {MESSAGE} (tenant, event, group_id, group_status, group_round, at)
            VALUES (NEW.tenant, '{GROUP_FINISHED}', NEW.id, NEW.status, NEW.round, NEW.finished_at);
        END""",  # noqa: S608
    ),
    DatabaseTrigger(
        "jobscheduler_webhook_endpoint",
        ENDPOINT,
        f"""
        CREATE TRIGGER jobscheduler_webhook_endpoint AFTER DELETE ON {ENDPOINT} FOR EACH ROW
        BEGIN
            DELETE FROM {SUBSCRIPTION} WHERE endpoint_id = OLD.id;
        END""",  # noqa: S608
    ),
)

TRIGGERS = TriggerSet(POSTGRESQL, SQLITE, (ON_EVENTS, ON_GROUP, ON_ENDPOINT))
