"""The database refuses what must never happen, even from raw SQL (constraints cover the rest)."""

from django.db import migrations

from jobs.migrations._operations import VendorSQL

ENDED = "('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')"
FROZEN = ("params", "job_type", "tenant", "target", "lane_id", "dispatched_at")
RUN_FROZEN = ("job_id", "started_at", "worker")
RUN_OPEN = ("status", "finished_at", "exit_code", "error", "artifacts")

INV_001 = "INV-001: Cannot modify params after dispatch"
INV_002 = "INV-002: a JobRun is an audit record; only its end may be written, once"
INV_006 = "INV-006: a group is terminal only when all its members are"
FINAL = "a terminal job keeps its status"
CHAIN = "a job keeps its place in its retry chain"
REPLACED = "a row is changed by UPDATE, never replaced"
APPEND_ONLY = "JobEvent is append-only"


def changed(columns: tuple[str, ...], differs: str) -> str:
    return " OR ".join(f"NEW.{column} {differs} OLD.{column}" for column in columns)


def postgres_trigger(name: str, table: str, event: str, when: str, message: str) -> list[str]:
    return [
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW WHEN ({when}) "
        f"EXECUTE FUNCTION jobscheduler_refuse('{message}')"
    ]


def sqlite_trigger(name: str, table: str, event: str, when: str, message: str) -> list[str]:
    return [
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW WHEN {when} "
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    ]


def triggers(make, differs: str) -> list[str]:
    return [
        *make(
            "jobscheduler_inv_001",
            "jobscheduler_job",
            f"UPDATE OF {', '.join(FROZEN)}",
            f"OLD.dispatched_at IS NOT NULL AND ({changed(FROZEN, differs)})",
            INV_001,
        ),
        *make(
            "jobscheduler_end_is_final",
            "jobscheduler_job",
            "UPDATE OF status",
            f"OLD.status IN {ENDED} AND NEW.status <> OLD.status",
            FINAL,
        ),
        *make(
            "jobscheduler_inv_002",
            "jobscheduler_jobrun",
            "UPDATE",
            f"{changed(RUN_FROZEN, differs)} OR (OLD.status <> 'RUNNING' AND ({changed(RUN_OPEN, differs)}))",
            INV_002,
        ),
        *make(
            "jobscheduler_chain",
            "jobscheduler_job",
            "UPDATE OF retry_of_id",
            changed(("retry_of_id",), differs),
            CHAIN,
        ),
        *make("jobscheduler_append_only", "jobscheduler_jobevent", "UPDATE", "1 = 1", APPEND_ONLY),
    ]


LIVE_MEMBER = f"SELECT 1 FROM jobscheduler_job WHERE group_id = NEW.id AND status NOT IN {ENDED}"
ENDED_GROUP = "SELECT 1 FROM jobscheduler_jobgroup WHERE id = NEW.group_id AND status NOT IN ('PENDING', 'RUNNING')"
GROUP_ENDS = "NEW.status NOT IN ('PENDING', 'RUNNING')"
JOINS_GROUP = f"NEW.group_id IS NOT NULL AND NEW.status NOT IN {ENDED}"

POSTGRES = [
    """
    CREATE FUNCTION jobscheduler_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    f"""
    CREATE FUNCTION jobscheduler_group_ends() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS ({LIVE_MEMBER}) THEN
            RAISE EXCEPTION USING MESSAGE = '{INV_006}', ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    f"""
    CREATE FUNCTION jobscheduler_joins_group() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS ({ENDED_GROUP}) THEN
            RAISE EXCEPTION USING MESSAGE = '{INV_006}', ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    *triggers(postgres_trigger, "IS DISTINCT FROM"),
    f"CREATE TRIGGER jobscheduler_inv_006 BEFORE UPDATE OF status ON jobscheduler_jobgroup FOR EACH ROW "
    f"WHEN ({GROUP_ENDS}) EXECUTE FUNCTION jobscheduler_group_ends()",
    f"CREATE TRIGGER jobscheduler_inv_006_member BEFORE INSERT OR UPDATE OF group_id ON jobscheduler_job FOR EACH ROW "
    f"WHEN ({JOINS_GROUP}) EXECUTE FUNCTION jobscheduler_joins_group()",
    # A heartbeat rewrites its row every few seconds: room on the page keeps it out of the indexes.
    "ALTER TABLE jobscheduler_job SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, "
    "autovacuum_analyze_scale_factor = 0.05)",
    "ALTER TABLE jobscheduler_jobrun SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05)",
    "ALTER TABLE jobscheduler_lanemark SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
]

TRIGGERS = {
    "jobscheduler_inv_001": "jobscheduler_job",
    "jobscheduler_end_is_final": "jobscheduler_job",
    "jobscheduler_chain": "jobscheduler_job",
    "jobscheduler_inv_006_member": "jobscheduler_job",
    "jobscheduler_inv_002": "jobscheduler_jobrun",
    "jobscheduler_append_only": "jobscheduler_jobevent",
    "jobscheduler_inv_006": "jobscheduler_jobgroup",
}
NO_POSTGRES = [
    *(f"DROP TRIGGER {name} ON {table}" for name, table in TRIGGERS.items()),
    "DROP FUNCTION jobscheduler_refuse(), jobscheduler_group_ends(), jobscheduler_joins_group()",
    "ALTER TABLE jobscheduler_job RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_analyze_scale_factor)",
    "ALTER TABLE jobscheduler_jobrun RESET (fillfactor, autovacuum_vacuum_scale_factor)",
    "ALTER TABLE jobscheduler_lanemark RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold)",
]

SQLITE = [
    *triggers(sqlite_trigger, "IS NOT"),
    *sqlite_trigger(
        "jobscheduler_inv_006",
        "jobscheduler_jobgroup",
        "UPDATE OF status",
        f"{GROUP_ENDS} AND EXISTS ({LIVE_MEMBER})",
        INV_006,
    ),
    *sqlite_trigger(
        "jobscheduler_inv_006_member",
        "jobscheduler_job",
        "INSERT",
        f"{JOINS_GROUP} AND EXISTS ({ENDED_GROUP})",
        INV_006,
    ),
    *sqlite_trigger(
        "jobscheduler_inv_006_moved",
        "jobscheduler_job",
        "UPDATE OF group_id",
        f"{JOINS_GROUP} AND EXISTS ({ENDED_GROUP})",
        INV_006,
    ),
]
# INSERT OR REPLACE deletes and inserts, past all triggers on UPDATE.
KEYS = {
    "jobscheduler_job": "id",
    "jobscheduler_jobrun": "job_id",
    "jobscheduler_jobevent": "id",
    "jobscheduler_jobgroup": "id",
}
for _table, _key in KEYS.items():
    SQLITE += sqlite_trigger(
        f"{_table}_not_replaced",
        _table,
        "INSERT",
        f"EXISTS (SELECT 1 FROM {_table} WHERE {_key} = NEW.{_key})",
        REPLACED,
    )
NO_SQLITE = [
    f"DROP TRIGGER IF EXISTS {name}"  # `pre_migrate` has removed them on SQLite
    for name in (*TRIGGERS, "jobscheduler_inv_006_moved", *(f"{table}_not_replaced" for table in KEYS))
]


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0002_job_schedule")]

    operations = [
        VendorSQL(
            forwards={"postgresql": POSTGRES, "sqlite": SQLITE},
            backwards={"postgresql": NO_POSTGRES, "sqlite": NO_SQLITE},
        )
    ]
