"""Record the statements of a piece of work and read how the database executes them.

`explain` and `explain_prepared` return plans of PostgreSQL as trees; `explain_text` and `find_full_scans` work on both
databases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from django.db import connection, transaction

from jobs import db

JOB_TABLE = "jobscheduler_job"
HISTORY_TABLES = (JOB_TABLE, "jobscheduler_jobrun", "jobscheduler_jobevent", "jobscheduler_joblog")
SORT_LIMIT = 20_000  # rows: to sort more of them means that the whole of an index was read
Node = dict[str, Any]
Statement = tuple[str, Any]


def execute(sql: str, params: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def record_statements(work: Callable[[], object]) -> list[Statement]:
    """Return the statements about jobs that `work` executes; its changes are rolled back."""
    statements: list[Statement] = []

    def record(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if JOB_TABLE in sql and re.match(r"\s*(SELECT|WITH|UPDATE)\b", sql):
            statements.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(record):
            work()
        transaction.set_rollback(True)
    return statements


def require_no_full_scan(statements: list[Statement]) -> None:
    """Explain each statement, with its values and as a prepared one where it can be."""
    for statement in statements:
        for plan in (explain(statement), *([explain_prepared(statement)] if is_preparable(statement) else [])):
            assert not find_scans(plan), f"{statement[0]}\n{json.dumps(plan, indent=1)}"


def is_preparable(statement: Statement) -> bool:
    """Return whether the values are parameters; statements of Django's ORM carry them in the text."""
    return not statement[0].startswith(("SELECT ", 'UPDATE "'))


def explain(statement: Statement) -> Node:
    return _read_plan("EXPLAIN (FORMAT JSON) " + statement[0], statement[1])


def explain_prepared(statement: Statement) -> Node:
    """Return the generic plan, which the server keeps for any values."""
    sql, values = _to_prepared(*statement)
    execute("SET LOCAL plan_cache_mode = force_generic_plan")
    execute(f"PREPARE guarded AS {sql}")
    arguments = f"({', '.join(['%s'] * len(values))})" if values else ""
    plan = _read_plan(f"EXPLAIN (FORMAT JSON) EXECUTE guarded{arguments}", values)
    execute("DEALLOCATE guarded")
    return plan


def _read_plan(sql: str, values: Any = None) -> Node:
    db.connection().ensure_connection()
    with psycopg.ClientCursor(connection.connection) as cursor:
        cursor.execute(sql.encode() if values is None else sql, values)
        ((((document,),),),) = (cursor.fetchall(),)
    plan: Node = document["Plan"]
    return plan


def _to_prepared(sql: str, params: Any) -> tuple[str, list[Any]]:
    """Replace the placeholders of the driver by those of the server, one for each name or position."""
    if isinstance(params, dict):
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
        sql = re.sub(r"%\((\w+)\)s", lambda match: f"${names.index(match[1]) + 1}", sql)
        return sql, [params[name] for name in names]
    positions = iter(range(1, len(params or ()) + 1))
    return re.sub("%s", lambda _: f"${next(positions)}", sql).replace("%%", "%"), list(params or ())


# ---------------------------------------------------------------------- reading a plan of PostgreSQL


def walk_nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from walk_nodes(part)


def get_subplan(plan: Node, name: str) -> Node:
    return next(node for node in walk_nodes(plan) if node.get("Subplan Name") == name)


def list_node_types(plan: Node) -> set[str]:
    return {node["Node Type"] for node in walk_nodes(plan)}


def list_indexes(plan: Node) -> set[str]:
    """Return the indexes that are read in their order; a bitmap scan is not."""
    return {node["Index Name"] for node in walk_nodes(plan) if node["Node Type"] in ("Index Scan", "Index Only Scan")}


def find_scans(plan: Node) -> list[Node]:
    """Return the nodes that read the whole table of jobs, or sort too many rows."""
    scans = [node for node in walk_nodes(plan) if _is_seq_scan(node, (JOB_TABLE,))]
    return scans + [node for node in walk_nodes(plan) if node["Node Type"] == "Sort" and node["Plan Rows"] > SORT_LIMIT]


def _is_seq_scan(node: Node, tables: tuple[str, ...]) -> bool:
    return node["Node Type"] == "Seq Scan" and node["Relation Name"] in tables


# ---------------------------------------------------------------------- on both databases


def explain_text(sql: str, params: Any = None) -> str:
    """Return the plan as the database prints it. A statement without `params` carries its values in the text."""
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        if params is None:
            cursor.execute(f"{explain} {sql}".replace("%", "%%"), [])
        else:
            cursor.execute(f"{explain} {sql}", params)
        return "".join(f"{row[-1]}\n" for row in cursor.fetchall())


def find_full_scans(sql: str) -> list[str]:
    """Return the steps of a query that read the whole of a table that grows with history."""
    if not re.match(r"\(*\s*(SELECT|WITH)\b", sql) or not any(table in sql for table in HISTORY_TABLES):
        return []
    return _find_scans_of_sqlite(sql) if connection.vendor == "sqlite" else _find_scans_of_postgres(sql)


def _find_scans_of_sqlite(sql: str) -> list[str]:
    whole_table = rf"SCAN ({'|'.join(HISTORY_TABLES)}|T\d+)( LEFT-JOIN)?"
    whole_key = rf"{whole_table} USING (COVERING )?INDEX sqlite_autoindex_\w+"  # right for a first page, not to search
    scan = whole_table if "WHERE" not in sql else f"{whole_table}|{whole_key}"
    return [step for step in explain_text(sql).splitlines() if re.fullmatch(scan, step)]


def _find_scans_of_postgres(sql: str) -> list[str]:
    plan = _read_plan(f"EXPLAIN (FORMAT JSON) {sql}")
    nodes = [node for node in walk_nodes(plan) if _is_seq_scan(node, HISTORY_TABLES)]
    return [f"{node['Node Type']} {node['Relation Name']}" for node in nodes]
