"""Jobs by the hundred thousand, made by the database itself: most have ended, a tenth are live, spread over a month.

All of them are valid; what they say follows from the number of their row, `n`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.db import connection, transaction

from jobs import ids
from jobs.engine.sql.columns import INITIAL_VALUES
from jobs.models import Target
from tests.factories import SAMPLE_TYPE
from tests.support.snapshots import APP_LABELS

LIVE = 0.1
TABLES = tuple(f"jobscheduler_{name}" for name in ("job", "jobrun", "jobevent", "joblog", "jobminute", "target"))
TYPES = (SAMPLE_TYPE, "tests.anything", "crowd.mail", "crowd.report")
TENANTS = ("default", "default", "default", "other")
A_HUNDRED = 100
A_TARGET = 100  # jobs, of a tenth of all targets; the others have none
MONTH_MS = 30 * 86_400_000
KINDS = 4 * len(TENANTS)  # after so many rows, types and tenants repeat


@dataclass
class LargeTables:
    """How to say what the two databases say differently."""

    connection: Any
    jobs: int
    began_ms: int = field(default_factory=lambda: int(time.time() * 1000) - MONTH_MS)

    @property
    def is_sqlite(self) -> bool:
        return bool(self.connection.vendor == "sqlite")

    @property
    def live(self) -> int:
        return round(self.jobs * LIVE)

    @property
    def targets(self) -> int:
        return self.jobs // A_TARGET

    def fill(self) -> None:
        self._learn(f"TRUNCATE {', '.join(TABLES)} CASCADE")  # what others left in indexes misleads the planner
        self.fill_jobs()
        self._insert(
            "jobscheduler_jobrun", self._run(), "SELECT * FROM jobscheduler_job WHERE dispatched_at IS NOT NULL"
        )
        self._insert("jobscheduler_jobevent", self._event(), self._select_events())
        self._insert(
            "jobscheduler_joblog", self._log(), "SELECT * FROM jobscheduler_job WHERE dispatched_at IS NOT NULL"
        )
        self._insert("jobscheduler_jobminute", self._minute(), f"SELECT n FROM ({self._numbers(self._minutes())}) AS s")
        self._learn("VACUUM ANALYZE")

    def fill_jobs(self) -> None:
        """Nothing but jobs and their targets; also within a transaction."""
        Target.objects.bulk_create(_targets(self.targets))
        self._learn("ANALYZE jobscheduler_target")
        self._insert("jobscheduler_job", self._job(), f"SELECT n FROM ({self._numbers(self.jobs)}) AS s")
        self._learn("ANALYZE jobscheduler_job")  # else foreign keys are looked up as they were in an empty table

    def _learn(self, statement: str) -> None:
        if not self.is_sqlite:  # SQLite has no statistics here
            with self.connection.cursor() as cursor:
                cursor.execute(statement)

    def id_of(self, n: int) -> str:
        return f"{self._ms(n):012x}70008{n:015x}"

    # What the columns say.

    def _job(self) -> dict[str, str]:
        """The newest are live: of ten, eight could start, one stands in a lane and one waits for its time.

        A hundred run, as many are paused, and as many pending, whatever the number of all.
        """
        live, every = f"n > {self.jobs - self.live}", max(self.live // A_HUNDRED // 10 * 10, 10)
        running, paused, pending = (f"({live} AND n % {every} = {rest})" for rest in (1, 2, 3))
        in_lane, later = f"({live} AND n % 10 = 0)", f"({live} AND n % 10 = 9)"
        status = f"""CASE WHEN {running} THEN 'RUNNING' WHEN {paused} THEN 'PAUSED' WHEN {pending} THEN 'PENDING'
                     WHEN {live} THEN 'QUEUED' WHEN n % 100 = 1 THEN 'FAILED' WHEN n % 100 = 2 THEN 'CANCELLED'
                     WHEN n % 100 = 3 THEN 'SKIPPED' ELSE 'COMPLETED' END"""
        json = "" if self.is_sqlite else "::jsonb"
        held = f"({running} OR {paused} OR {pending})"
        at, target, tenant = (
            self._time("n"),
            f"'target ' || (n % {self.targets})",
            self._by_kind(TENANTS, repeat=len(TYPES)),
        )
        lane = f"(SELECT t.id FROM jobscheduler_target t WHERE t.tenant = {tenant} AND t.key = {target})"
        return {
            "id": self._id("n"),
            "job_type": self._by_kind(TYPES),
            "tenant": tenant,
            "flow_id": self._flow(),
            "status": status,
            "gate": f"CASE WHEN NOT ({live}) OR {held} THEN 0 WHEN {later} THEN 1 WHEN {in_lane} THEN 2 ELSE 3 END",
            "target": f"CASE WHEN n % 10 = 0 THEN {target} END",
            "lane_id": f"CASE WHEN n % 10 = 0 THEN {lane} END",
            "not_before": f"CASE WHEN {later} THEN {self._time('n', hours=2000)} END",
            "dispatched_at": f"CASE WHEN (NOT ({live}) AND n % 100 <> 2) OR {running} THEN {at} END",
            "lease_owner": f"CASE WHEN {running} THEN 'crowd@1#' || n END",
            "lease_token": f"CASE WHEN {running} THEN {self._id('n')} END",
            "lease_expires_at": f"CASE WHEN {running} THEN {self._time('n', hours=2000)} END",
            "hold": f"{pending}",
            "tags": f"CASE WHEN n % 20 = 7 THEN '[\"rare\"]'{json} ELSE '[]'{json} END",
            "created_at": at,
            "position": "n * 1024",
            **_PLAIN,
            **INITIAL_VALUES,
        }

    def _run(self) -> dict[str, str]:
        ended = "status IN ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED')"
        return {
            "job_id": "id",
            "status": f"CASE WHEN {ended} THEN status ELSE 'RUNNING' END",
            "started_at": "created_at",
            "finished_at": f"CASE WHEN {ended} THEN created_at END",
            "exit_code": f"CASE WHEN {ended} THEN 0 END",
            "error": "''",
            "artifacts": "'{}'",
            "worker": "'crowd'",
        }

    def _event(self) -> dict[str, str]:
        fields = {"kind": "kind", "from_status": "came_from", "to_status": "went_to", "reason": "''"}
        return {"job_id": "id", "at": "created_at", **fields, "actor_kind": "'cli'", "actor_name": "'crowd'"}

    def _select_events(self) -> str:
        """In the order in which it did: all came, and most ended."""
        began = "SELECT *, 'SUBMITTED' AS kind, '' AS came_from, 'QUEUED' AS went_to FROM jobscheduler_job"
        ended = "SELECT *, status, 'RUNNING', status FROM jobscheduler_job WHERE status IN"
        return f"{began} UNION ALL {ended} ('COMPLETED', 'FAILED', 'SKIPPED', 'CANCELLED') ORDER BY created_at"

    def _log(self) -> dict[str, str]:
        return {"job_id": "id", "at": "created_at", "level": "'INFO'", "message": "'a line'"}

    def _minute(self) -> dict[str, str]:
        """Of the last day: two workers, every type, and three ways in which it went."""
        kinds = 2 * len(TYPES) * 3
        return {
            "minute": self._minute_of(f"n / {kinds}"),
            "worker": "'worker ' || (n % 2)",
            "tenant": "'default'",
            "resource": "'default'",
            "job_type": self._by_kind(TYPES, repeat=2),
            "outcome": f"CASE WHEN n / {2 * len(TYPES)} % 3 = 2 THEN 'FAILED' ELSE 'COMPLETED' END",
            "wait_bucket": f"n / {2 * len(TYPES)} % 3",
            "run_bucket": f"n / {2 * len(TYPES)} % 3",
            "jobs": "5",
            "wait_sec": "2.5",
            "run_sec": "2.5",
            "retried": "0",
            "recovered": "0",
        }

    def _minutes(self) -> int:
        """As many rows as so many jobs may leave in a day, and not more than a busy day has."""
        return min(self.jobs, 1440 * 2 * len(TYPES) * 3)

    # How it is said.

    def _insert(self, table: str, fields: dict[str, str], source: str) -> None:
        sql = f"INSERT INTO {table} ({', '.join(fields)}) SELECT {', '.join(fields.values())} FROM ({source}) AS source"
        with self.connection.cursor() as cursor:
            cursor.execute(sql.replace("%", "%%"), ())

    def _numbers(self, count: int) -> str:
        if self.is_sqlite:
            return f"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c"
        return f"SELECT generate_series(1, {count}) AS n"

    def _ms(self, n: int) -> int:
        return self.began_ms + n * MONTH_MS // self.jobs

    def _id(self, n: str) -> str:
        """Time-ordered, as ours are: it matters to the indexes."""
        ms = f"({self.began_ms} + {n} * {MONTH_MS} / {self.jobs})"
        if self.is_sqlite:
            return f"printf('%012x70008%015x', {ms}, {n})"
        ms = f"({self.began_ms} + {n}::bigint * {MONTH_MS} / {self.jobs})"
        return f"(lpad(to_hex({ms}), 12, '0') || '70008' || lpad(to_hex({n}), 15, '0'))::uuid"

    def _time(self, n: str, hours: int = 0) -> str:
        sec = f"({self.began_ms} / 1000 + {n} * {MONTH_MS // 1000}.0 / {self.jobs} + {hours * 3600})"
        if self.is_sqlite:
            return f"strftime('%Y-%m-%d %H:%M:%f', {sec}, 'unixepoch')"
        return f"to_timestamp({sec})"

    def _minute_of(self, n: str) -> str:
        last_day = (self.began_ms + MONTH_MS - 86_400_000) // 60_000
        if self.is_sqlite:
            return f"strftime('%Y-%m-%d %H:%M:00', ({last_day} + {n}) * 60, 'unixepoch')"
        return f"to_timestamp(({last_day} + {n}) * 60)"

    def _by_kind(self, names: tuple[str, ...], repeat: int = 1) -> str:
        whens = " ".join(f"WHEN {place} THEN '{name}'" for place, name in enumerate(names))
        return f"CASE n / {repeat} % {len(names)} {whens} END"

    def _flow(self) -> str:
        kinds = [(TYPES[n % len(TYPES)], TENANTS[n // len(TYPES) % len(TENANTS)]) for n in range(KINDS)]
        flows = [ids.derive_flow_id(tenant, job_type, "default", "") for job_type, tenant in kinds]
        return f"CASE n % {KINDS} {' '.join(f'WHEN {n} THEN {flow}' for n, flow in enumerate(flows))} END"


def _targets(count: int) -> list[Target]:
    places = [(tenant, f"target {n}") for tenant in sorted(set(TENANTS)) for n in range(count)]
    return [Target(id=ids.derive_lane_id(tenant, key), tenant=tenant, key=key) for tenant, key in places]


_PLAIN = {
    "params": "'{}'",
    "addon_id": "''",
    "resource": "'default'",
    "remote": "false",
    "holds_lane": "false",
    "priority": "50",
    "base_priority": "50",
    "time_sensitive": "false",
    "cost_units": "1",
    "constraints": "'{}'",
    "max_retries": "3",
    "retry_policy": "'{}'",
    "attempt": "1",
    "fence": "0",
    "idempotency_hash": "''",
}


def delete_all_rows() -> None:
    """Empty every table of ours, also those whose triggers forbid deletion."""
    tables = [model._meta.db_table for label in APP_LABELS for model in apps.get_app_config(label).get_models()]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")
            cursor.execute("ANALYZE")
        else:
            _delete_rows_of_sqlite(cursor, tables)
    connection.close()


def _delete_rows_of_sqlite(cursor: Any, tables: list[str]) -> None:
    cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%DELETE ON%'")
    triggers = cursor.fetchall()
    with transaction.atomic():
        for name, _ in triggers:
            cursor.execute(f"DROP TRIGGER {name}")
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")
        for _, sql in triggers:
            cursor.execute(sql)
