"""Triggers that reject writes which break an invariant, even from raw SQL, and those that index tags; constraints
cover the rest.

PostgreSQL parses the condition of every trigger anew for every statement that may fire it. A rule about columns that
an ordinary claim or finish does not write is a trigger of its own, so that those statements never parse it.
"""

from __future__ import annotations

from functools import partial

from jobs.triggers import MAY_PRUNE, NOT_PRUNING, DatabaseTrigger, Function, TriggerSet, build_or_chain

JOB, RUN = "jobscheduler_job", "jobscheduler_jobrun"
EVENT, GROUP, ACTIVITY = "jobscheduler_jobevent", "jobscheduler_jobgroup", "jobscheduler_activity"
TAG = "jobscheduler_jobtag"

INV_001 = "INV-001: Cannot modify params after dispatch"
INV_002 = "INV-002: a JobRun is an audit record; only its end may be written, once"
INV_006 = "INV-006: a group is terminal only when all its members are"
FINAL = "a terminal job keeps its status"
CHAIN = "a job keeps its place in its retry chain"
REPLACED = "a row is changed by UPDATE, never replaced"
APPEND_ONLY = "JobEvent is append-only"
ACTIVITY_APPEND_ONLY = "Activity is append-only"

FROZEN = ("params", "job_type", "tenant", "target", "lane_id")
RUN_FROZEN = ("job_id", "started_at", "worker")
RUN_OPEN = ("status", "finished_at", "exit_code", "error", "artifacts")
TERMINAL_STATUSES = ("COMPLETED", "FAILED", "SKIPPED", "CANCELLED")
TERMINAL = "('" + "', '".join(TERMINAL_STATUSES) + "')"

DISPATCHED = "OLD.dispatched_at IS NOT NULL"
LIVE_MEMBER = f"SELECT 1 FROM {JOB} WHERE group_id = NEW.id AND status NOT IN {TERMINAL}"  # noqa: S608 — constants
ENDED_GROUP = f"SELECT 1 FROM {GROUP} WHERE id = NEW.group_id AND status NOT IN ('PENDING', 'RUNNING')"  # noqa: S608
GROUP_ENDS = "NEW.status NOT IN ('PENDING', 'RUNNING')"
JOB_OF_EVENT = f"SELECT 1 FROM {JOB} WHERE id = OLD.job_id"  # noqa: S608 — names of tables only
JOINS_GROUP = f"NEW.group_id IS NOT NULL AND NEW.status NOT IN {TERMINAL}"


def _any_changed(operator: str, *columns: str) -> str:
    return " OR ".join(f"NEW.{column} {operator} OLD.{column}" for column in columns)


# The rows of JobTag follow the column `tags`, also in raw SQL; a job without tags fires none of these triggers.
TAG_EVENTS = {
    "jobscheduler_tags_inserted": ("INSERT", "NEW.tags <> '[]'"),
    "jobscheduler_tags_updated": ("UPDATE OF tags", "NEW.tags <> OLD.tags"),
    "jobscheduler_tags_deleted": ("DELETE", "OLD.tags <> '[]'"),
}

# ---------------------------------------------------------------------- PostgreSQL

REFUSE = Function(
    "jobscheduler_refuse",
    """
    BEGIN
        RAISE EXCEPTION USING MESSAGE = TG_ARGV[0], ERRCODE = 'integrity_constraint_violation';
    END """,
    reads_tables=False,
)


def _function_refusing_if(name: str, condition: str, message: str = INV_006, row: str = "NEW") -> Function:
    body = f"""
    BEGIN
        IF EXISTS ({condition}) THEN
            RAISE EXCEPTION USING MESSAGE = '{message}', ERRCODE = 'integrity_constraint_violation';
        END IF;
        RETURN {row};
    END """
    return Function(name, body)


GROUP_FUNCTION = _function_refusing_if("jobscheduler_group_ends", LIVE_MEMBER)
MEMBER_FUNCTION = _function_refusing_if("jobscheduler_joins_group", ENDED_GROUP)
EVENT_FUNCTION = _function_refusing_if("jobscheduler_keep_event", JOB_OF_EVENT, APPEND_ONLY, "OLD")
TAG_FUNCTION = Function(
    "jobscheduler_index_tags",
    f"""
    BEGIN
        IF TG_OP <> 'INSERT' THEN
            DELETE FROM {TAG} WHERE job_id = OLD.id AND tag IN (SELECT jsonb_array_elements_text(OLD.tags));
        END IF;
        IF TG_OP <> 'DELETE' THEN
            INSERT INTO {TAG} (job_id, tag) SELECT DISTINCT NEW.id, tag FROM jsonb_array_elements_text(NEW.tags) AS tag;
        END IF;
        RETURN NULL;
    END """,  # noqa: S608 — names of tables only
)


def _postgresql_trigger(
    name: str, table: str, event: str, when: str, message: str = "", function: Function = REFUSE
) -> DatabaseTrigger:
    argument = f"'{message}'" if message else ""
    sql = (
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW WHEN ({when}) "
        f"EXECUTE FUNCTION {function.name}({argument})"
    )
    return DatabaseTrigger(name, table, sql, function.name)


_distinct = partial(_any_changed, "IS DISTINCT FROM")

POSTGRESQL = (
    _postgresql_trigger(
        "jobscheduler_inv_001",
        JOB,
        f"UPDATE OF {', '.join(FROZEN)}",
        f"{DISPATCHED} AND ({_distinct(*FROZEN)})",
        INV_001,
    ),
    _postgresql_trigger(
        "jobscheduler_inv_001_dispatch",
        JOB,
        "UPDATE OF dispatched_at",
        f"{DISPATCHED} AND ({_distinct('dispatched_at')})",
        INV_001,
    ),
    _postgresql_trigger(
        "jobscheduler_end_is_final",
        JOB,
        "UPDATE OF status",
        "OLD.status = ANY('{COMPLETED,FAILED,SKIPPED,CANCELLED}'::text[]) AND NEW.status <> OLD.status",
        FINAL,
    ),
    _postgresql_trigger("jobscheduler_chain", JOB, "UPDATE OF retry_of_id", _distinct("retry_of_id"), CHAIN),
    _postgresql_trigger(
        "jobscheduler_inv_002", RUN, "UPDATE", "OLD.finished_at IS NOT NULL AND NEW IS DISTINCT FROM OLD", INV_002
    ),
    _postgresql_trigger(
        "jobscheduler_inv_002_start", RUN, f"UPDATE OF {', '.join(RUN_FROZEN)}", _distinct(*RUN_FROZEN), INV_002
    ),
    _postgresql_trigger("jobscheduler_append_only", EVENT, "UPDATE", "1 = 1", APPEND_ONLY),
    _postgresql_trigger("jobscheduler_keep_event", EVENT, "DELETE", NOT_PRUNING, function=EVENT_FUNCTION),
    _postgresql_trigger("jobscheduler_activity_append_only", ACTIVITY, "UPDATE", "1 = 1", ACTIVITY_APPEND_ONLY),
    _postgresql_trigger("jobscheduler_keep_activity", ACTIVITY, "DELETE", NOT_PRUNING, ACTIVITY_APPEND_ONLY),
    _postgresql_trigger("jobscheduler_inv_006", GROUP, "UPDATE OF status", GROUP_ENDS, function=GROUP_FUNCTION),
    _postgresql_trigger(
        "jobscheduler_inv_006_member", JOB, "INSERT OR UPDATE OF group_id", JOINS_GROUP, function=MEMBER_FUNCTION
    ),
)

# ---------------------------------------------------------------------- SQLite


def _sqlite_trigger(name: str, table: str, event: str, when: str, message: str) -> DatabaseTrigger:
    sql = (
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW WHEN {when} "
        f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )
    return DatabaseTrigger(name, table, sql)


_differs = partial(_any_changed, "IS NOT")


def _trigger_against_replace(table: str, key: str) -> DatabaseTrigger:
    """Reject INSERT OR REPLACE, which deletes and inserts without firing any trigger on UPDATE."""
    exists = f"EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key})"  # noqa: S608 — constants
    return _sqlite_trigger(f"{table}_not_replaced", table, "INSERT", exists, REPLACED)


SQLITE = (
    _sqlite_trigger(
        "jobscheduler_inv_001",
        JOB,
        f"UPDATE OF {', '.join((*FROZEN, 'dispatched_at'))}",
        f"{DISPATCHED} AND ({_differs(*FROZEN, 'dispatched_at')})",
        INV_001,
    ),
    _sqlite_trigger(
        "jobscheduler_end_is_final",
        JOB,
        "UPDATE OF status",
        f"{build_or_chain('OLD.status', TERMINAL_STATUSES)} AND NEW.status <> OLD.status",
        FINAL,
    ),
    _sqlite_trigger("jobscheduler_chain", JOB, "UPDATE OF retry_of_id", _differs("retry_of_id"), CHAIN),
    _sqlite_trigger(
        "jobscheduler_inv_002",
        RUN,
        "UPDATE",
        f"{_differs(*RUN_FROZEN)} OR (OLD.status <> 'RUNNING' AND ({_differs(*RUN_OPEN)}))",
        INV_002,
    ),
    _sqlite_trigger("jobscheduler_append_only", EVENT, "UPDATE", "1 = 1", APPEND_ONLY),
    _sqlite_trigger(
        "jobscheduler_keep_event", EVENT, "DELETE", f"NOT {MAY_PRUNE} AND EXISTS ({JOB_OF_EVENT})", APPEND_ONLY
    ),
    _sqlite_trigger("jobscheduler_activity_append_only", ACTIVITY, "UPDATE", "1 = 1", ACTIVITY_APPEND_ONLY),
    _sqlite_trigger("jobscheduler_keep_activity", ACTIVITY, "DELETE", f"NOT {MAY_PRUNE}", ACTIVITY_APPEND_ONLY),
    _sqlite_trigger(
        "jobscheduler_inv_006", GROUP, "UPDATE OF status", f"{GROUP_ENDS} AND EXISTS ({LIVE_MEMBER})", INV_006
    ),
    _sqlite_trigger("jobscheduler_inv_006_member", JOB, "INSERT", f"{JOINS_GROUP} AND EXISTS ({ENDED_GROUP})", INV_006),
    _sqlite_trigger(
        "jobscheduler_inv_006_moved", JOB, "UPDATE OF group_id", f"{JOINS_GROUP} AND EXISTS ({ENDED_GROUP})", INV_006
    ),
    _trigger_against_replace(JOB, "id"),
    _trigger_against_replace(RUN, "job_id"),
    _trigger_against_replace(EVENT, "id"),
    _trigger_against_replace(GROUP, "id"),
    _trigger_against_replace(ACTIVITY, "id"),
)


def _postgresql_tag_trigger(name: str, event: str, when: str) -> DatabaseTrigger:
    sql = (
        f"CREATE TRIGGER {name} AFTER {event} ON {JOB} FOR EACH ROW WHEN ({when}) "
        f"EXECUTE FUNCTION {TAG_FUNCTION.name}()"
    )
    return DatabaseTrigger(name, JOB, sql, TAG_FUNCTION.name, TAG)


def _sqlite_tag_trigger(name: str, event: str, when: str) -> DatabaseTrigger:
    delete = f"DELETE FROM {TAG} WHERE job_id = OLD.id AND tag IN (SELECT value FROM json_each(OLD.tags));"  # noqa: S608
    insert = f"INSERT INTO {TAG} (job_id, tag) SELECT DISTINCT NEW.id, value FROM json_each(NEW.tags);"  # noqa: S608
    statements = {"INSERT": insert, "DELETE": delete}.get(event, f"{delete} {insert}")
    sql = f"CREATE TRIGGER {name} AFTER {event} ON {JOB} FOR EACH ROW WHEN {when} BEGIN {statements} END"
    return DatabaseTrigger(name, JOB, sql, written_table=TAG)


TRIGGERS = TriggerSet(
    (*POSTGRESQL, *(_postgresql_tag_trigger(name, *spec) for name, spec in TAG_EVENTS.items())),
    (*SQLITE, *(_sqlite_tag_trigger(name, *spec) for name, spec in TAG_EVENTS.items())),
    (REFUSE, GROUP_FUNCTION, MEMBER_FUNCTION, EVENT_FUNCTION, TAG_FUNCTION),
)
