"""What workers ask again and again must not walk the queue: PostgreSQL's plans at 200,000 ready jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, transaction
from pytest_django import DjangoDbBlocker

from bench import bulk_insert
from jobs.actors import make_worker_actor
from jobs.engine import promoter
from jobs.engine.claim import Claimer, ServedJobs, has_unserved_jobs
from jobs.engine.finish import JobResult, finish
from jobs.engine.maintenance.recovery import LeaseReaper
from jobs.engine.sql.claim import renew_leases
from jobs.models import ConcurrencyLimit
from jobs.outcomes import Completed

pytestmark = [pytest.mark.pg_only, pytest.mark.django_db]

TABLE = "jobscheduler_job"
JOBS = 200_000
TYPES = ("plans.one", "plans.two", "plans.three", "plans.four")
SLOTS = range(20)
Node = dict[str, Any]
Statement = tuple[str, Any]


@pytest.fixture(scope="module")
def queue(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Ready jobs of four types in equal parts, some running; statistics as autovacuum would have them."""
    if connection.vendor != "postgresql":
        yield
        return
    with django_db_blocker.unblock():
        for job_type in TYPES:
            bulk_insert.insert_jobs(connection, job_type, JOBS // len(TYPES))
        bulk_insert.insert_jobs(connection, TYPES[0], 100, **bulk_insert.RUNNING)
        ask("ANALYZE")
        yield
        ask(f"TRUNCATE {TABLE} CASCADE")
        ask("ANALYZE")
        connection.close()


@pytest.mark.parametrize("prepared", [True, False])
def test_a_claim_walks_the_dispatch_order(queue: None, prepared: bool) -> None:
    claimer = Claimer("plans", ServedJobs(TYPES))
    require_no_walk(statements(lambda: claimer.claim(SLOTS, lease_sec=30)))  # by a round: limits may be in force
    assert claimer.is_plain
    (claim,) = statements(lambda: claimer.claim(SLOTS, lease_sec=30))
    plan = explain_prepared(claim) if prepared else explain(claim)
    assert "job_order" in indexes(plan), plan
    assert not scans(plan), plan
    assert "Sort" not in kinds(subplan(plan, "CTE picked")), plan


def test_a_claim_under_limits_reads_no_more_than_it_needs(queue: None) -> None:
    def claim() -> None:
        ConcurrencyLimit.objects.create(scope="global", max=1000)
        ConcurrencyLimit.objects.create(scope="job_type", key=TYPES[1], max=500)
        assert Claimer("plans", ServedJobs(TYPES)).claim(SLOTS, lease_sec=30)

    require_no_walk(statements(claim))


def test_a_saturated_type_is_stepped_over_by_the_heads_of_flows(queue: None) -> None:
    def claim() -> None:
        ConcurrencyLimit.objects.create(scope="job_type", key=TYPES[0], max=1)
        ahead = (
            "UPDATE jobscheduler_job SET position = -1 WHERE job_type = %s AND id IN (SELECT id FROM jobscheduler_job"
        )
        ask(f"{ahead} WHERE gate = 3 AND job_type = %s LIMIT 1500)", [TYPES[0], TYPES[0]])
        assert Claimer("plans", ServedJobs(TYPES)).claim(SLOTS, lease_sec=30)

    asked = [statement for statement in statements(claim) if "SET position" not in statement[0]]
    (heads,) = [statement for statement in asked if "RECURSIVE head" in statement[0]]
    require_no_walk(asked)
    assert indexes(explain_prepared(heads)) == {"job_ready"}


def test_looking_for_foreign_work_steps_from_flow_to_flow(queue: None) -> None:
    (asked,) = statements(lambda: has_unserved_jobs(ServedJobs(TYPES)))
    plan = explain_prepared(asked)
    assert indexes(plan) == {"job_ready"}
    assert not scans(plan)


def test_a_sweep_reads_only_what_runs(queue: None) -> None:
    asked = statements(LeaseReaper().run_round)
    assert asked
    require_no_walk(asked)


def test_ends_and_heartbeats_go_straight_to_their_rows(queue: None) -> None:
    def work() -> None:
        claims = Claimer("plans", ServedJobs(TYPES)).claim(SLOTS, lease_sec=30)
        renew_leases(connection, [(claim.id, claim.lease_token) for claim in claims], 30)
        finish(
            [JobResult(claim.id, claim.lease_token, Completed()) for claim in claims], actor=make_worker_actor("plans")
        )

    require_no_walk(statements(work))


def test_lanes_and_due_times_are_looked_up_by_index(queue: None) -> None:
    def work() -> None:
        ask("INSERT INTO jobscheduler_lanemark (lane_id) VALUES (%s)", [uuid4()])
        promoter.promote()
        promoter.promote_due()
        promoter.read_queue_state()

    require_no_walk(statements(work))


# ---------------------------------------------------------------------- what was asked, and how it is answered


def statements(work: Callable[[], object]) -> list[Statement]:
    """What `work` asks about jobs. It is undone afterwards."""
    asked: list[Statement] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if TABLE in sql and re.match(r"\s*(SELECT|WITH|UPDATE)\b", sql):
            asked.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(note):
            work()
        transaction.set_rollback(True)
    return asked


def require_no_walk(asked: list[Statement]) -> None:
    for statement in asked:
        for plan in (explain(statement), *([explain_prepared(statement)] if is_prepared(statement) else [])):
            assert not scans(plan), f"{statement[0]}\n{json.dumps(plan, indent=1)}"


def is_prepared(statement: Statement) -> bool:
    """Django's own statements carry their values in the text."""
    return not statement[0].startswith("SELECT ")


def explain(statement: Statement) -> Node:
    return plan_of("EXPLAIN (FORMAT JSON) " + statement[0], statement[1])


def explain_prepared(statement: Statement) -> Node:
    """The plan that the server keeps when it stops looking at the values."""
    sql, values = as_prepared(*statement)
    ask("SET LOCAL plan_cache_mode = force_generic_plan")
    ask(f"PREPARE guarded AS {sql}")
    given = f"({', '.join(['%s'] * len(values))})" if values else ""
    plan = plan_of(f"EXPLAIN (FORMAT JSON) EXECUTE guarded{given}", values)
    ask("DEALLOCATE guarded")
    return plan


def plan_of(sql: str, values: Any) -> Node:
    with psycopg.ClientCursor(connection.connection) as cursor:
        cursor.execute(sql, values)
        ((((found,),),),) = (cursor.fetchall(),)
    plan: Node = found["Plan"]
    return plan


def as_prepared(sql: str, params: Any) -> tuple[str, list[Any]]:
    """The driver's placeholders as the server's, each name or place once."""
    if isinstance(params, dict):
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql)))
        sql = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", sql)
        return sql, [params[name] for name in names]
    places = iter(range(1, len(params or ()) + 1))
    return re.sub("%s", lambda _: f"${next(places)}", sql).replace("%%", "%"), list(params or ())


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def subplan(plan: Node, name: str) -> Node:
    return next(node for node in nodes(plan) if node.get("Subplan Name") == name)


def kinds(plan: Node) -> set[str]:
    return {node["Node Type"] for node in nodes(plan)}


def indexes(plan: Node) -> set[str]:
    """Walked in their order; what a bitmap collects is not."""
    return {node["Index Name"] for node in nodes(plan) if node["Node Type"] in ("Index Scan", "Index Only Scan")}


def scans(plan: Node) -> list[Node]:
    """Where the whole table, or the whole of an index, is read."""
    whole = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan" and node["Relation Name"] == TABLE]
    return whole + [node for node in nodes(plan) if node["Node Type"] == "Sort" and node["Plan Rows"] > JOBS / 10]


def ask(sql: str, params: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
