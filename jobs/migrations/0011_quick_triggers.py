"""The triggers of jobs and runs and the checks of runs, said as PostgreSQL evaluates them fastest: the same rules.

The server reads the condition of every trigger and check anew for every statement that may concern it. One that asks
for columns which an ordinary claim or end does not write is a trigger of its own, so that those never read it.
"""

from django.db import migrations

from jobs.migrations._operations import VendorSQL

REFUSED = {
    "001": "INV-001: Cannot modify params after dispatch",
    "002": "INV-002: a JobRun is an audit record; only its end may be written, once",
    "end": "a terminal job keeps its status",
}
FROZEN = ("params", "job_type", "tenant", "target", "lane_id")
RUN_FROZEN = ("job_id", "started_at", "worker")
RUN_OPEN = ("status", "finished_at", "exit_code", "error", "artifacts")


def changed(*columns: str) -> str:
    return " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in columns)


def trigger(name: str, table: str, event: str, when: str, message: str) -> str:
    return (
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW WHEN ({when}) "
        f"EXECUTE FUNCTION jobscheduler_refuse('{REFUSED[message]}')"
    )


def of_job(name: str, columns: tuple[str, ...], when: str, message: str) -> str:
    return trigger(name, "jobscheduler_job", f"UPDATE OF {', '.join(columns)}", when, message)


def checks_of_run(known: str, open_until_finished: str) -> str:
    rules = {"jobrun_status_known": known, "jobrun_open_until_finished": open_until_finished}
    steps = [f"DROP CONSTRAINT {name}, ADD CONSTRAINT {name} CHECK ({rule})" for name, rule in rules.items()]
    return f"ALTER TABLE jobscheduler_jobrun {', '.join(steps)}"


DROP = [
    "DROP TRIGGER jobscheduler_inv_001 ON jobscheduler_job",
    "DROP TRIGGER jobscheduler_end_is_final ON jobscheduler_job",
    "DROP TRIGGER jobscheduler_inv_002 ON jobscheduler_jobrun",
]
DROP_NEW = [
    "DROP TRIGGER jobscheduler_inv_001_dispatch ON jobscheduler_job",
    "DROP TRIGGER jobscheduler_inv_002_start ON jobscheduler_jobrun",
]
DISPATCHED = "OLD.dispatched_at IS NOT NULL"
QUICK = [
    of_job("jobscheduler_inv_001", FROZEN, f"{DISPATCHED} AND ({changed(*FROZEN)})", "001"),
    of_job(
        "jobscheduler_inv_001_dispatch", ("dispatched_at",), f"{DISPATCHED} AND ({changed('dispatched_at')})", "001"
    ),
    of_job(
        "jobscheduler_end_is_final",
        ("status",),
        "OLD.status = ANY('{COMPLETED,FAILED,SKIPPED,CANCELLED}'::text[]) AND NEW.status <> OLD.status",
        "end",
    ),
    trigger(
        "jobscheduler_inv_002",
        "jobscheduler_jobrun",
        "UPDATE",
        "OLD.finished_at IS NOT NULL AND NEW IS DISTINCT FROM OLD",
        "002",
    ),
    trigger(
        "jobscheduler_inv_002_start",
        "jobscheduler_jobrun",
        f"UPDATE OF {', '.join(RUN_FROZEN)}",
        changed(*RUN_FROZEN),
        "002",
    ),
    checks_of_run(
        "status = ANY('{RUNNING,COMPLETED,FAILED,SKIPPED,CANCELLED}'::text[])",
        "(status = 'RUNNING') = (finished_at IS NULL)",
    ),
]
AS_BEFORE = [
    of_job(
        "jobscheduler_inv_001",
        (*FROZEN, "dispatched_at"),
        f"{DISPATCHED} AND ({changed(*FROZEN, 'dispatched_at')})",
        "001",
    ),
    of_job(
        "jobscheduler_end_is_final",
        ("status",),
        "OLD.status IN ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED') AND NEW.status <> OLD.status",
        "end",
    ),
    trigger(
        "jobscheduler_inv_002",
        "jobscheduler_jobrun",
        "UPDATE",
        f"{changed(*RUN_FROZEN)} OR (OLD.status <> 'RUNNING' AND ({changed(*RUN_OPEN)}))",
        "002",
    ),
    checks_of_run(
        "status IN ('RUNNING', 'CANCELLED', 'COMPLETED', 'FAILED', 'SKIPPED')",
        "(finished_at IS NULL AND status = 'RUNNING') OR (NOT (status = 'RUNNING') AND finished_at IS NOT NULL)",
    ),
]


class Migration(migrations.Migration):
    dependencies = [("jobscheduler_jobs", "0010_worker_usage")]
    operations = [
        VendorSQL(forwards={"postgresql": [*DROP, *QUICK]}, backwards={"postgresql": [*DROP, *DROP_NEW, *AS_BEFORE]}),
    ]
