"""The database itself refuses what must never happen, even from raw SQL; nothing is changed by the attempt."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

from tests.factories import ActivityFactory, JobFactory
from tests.invariants.raw import (
    ONLY_ON_POSTGRES,
    ONLY_ON_SQLITE,
    OUTBOX_TRIGGERS,
    REPLACEABLE,
    TAG_TRIGGERS,
    TRIGGERS,
    drop_trigger,
    execute,
    existing_triggers,
)
from tests.invariants.violations import VIOLATIONS, Violation
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

RULES = {
    *(f"INV-00{n}" for n in range(1, 7)),
    "DEC-001",
    "DEC-006",
    "lanes",
    "lease",
    "chain",
    "fire",
    "idempotency",
    "state",
    "audit",
}


@pytest.mark.parametrize("violation", VIOLATIONS, ids=str)
def test_the_database_refuses(violation: Violation) -> None:
    params = violation.given()
    before = dump_tables()
    with pytest.raises(IntegrityError, match=violation.by):
        execute(violation.sql, params)
    assert dump_tables() == before


def test_every_promise_of_the_database_is_tried() -> None:
    assert {violation.rule for violation in VIOLATIONS} == RULES
    assert len({str(violation) for violation in VIOLATIONS}) == len(VIOLATIONS)


def test_every_trigger_is_in_the_migrated_database() -> None:
    of_this_database = ONLY_ON_SQLITE if connection.vendor == "sqlite" else ONLY_ON_POSTGRES
    assert existing_triggers() == TRIGGERS | TAG_TRIGGERS | OUTBOX_TRIGGERS | of_this_database


@pytest.mark.sqlite_only
@pytest.mark.parametrize("table", REPLACEABLE)
def test_a_row_cannot_be_replaced_past_the_triggers(table: str) -> None:
    """SQLite's INSERT OR REPLACE deletes the old row without running triggers."""
    JobFactory.create(completed=True, in_group=True)
    ActivityFactory.create()
    execute(
        "INSERT INTO jobscheduler_jobevent (job_id, at, kind, from_status, to_status, reason, actor_kind, actor_name)"
        " SELECT id, created_at, 'COMPLETED', '', '', '', 'cli', '' FROM jobscheduler_job",
        {},
    )
    before = dump_tables()
    with pytest.raises(IntegrityError, match="never replaced"):
        execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}", {})
    assert dump_tables() == before


GUARDED = {
    "jobscheduler_inv_001": "INV-001 params of a completed job",
    "jobscheduler_end_is_final": "DEC-006 COMPLETED another end",
    "jobscheduler_chain": "chain closed to a ring",
    "jobscheduler_inv_006_member": "INV-006 a live member inserted into an ended group",
    "jobscheduler_inv_002": "INV-002 error of an ended run",
    "jobscheduler_append_only": "audit an event rewritten",
    "jobscheduler_keep_event": "audit an event of an existing job deleted",
    "jobscheduler_activity_append_only": "audit an activity rewritten",
    "jobscheduler_keep_activity": "audit an old activity deleted",
    "jobscheduler_inv_006": "INV-006 completed over a RUNNING member",
    "jobscheduler_inv_001_dispatch": "INV-001 dispatched_at of a handed back job, taken back",
    "jobscheduler_inv_002_start": "INV-002 worker of an open run",
}
ALL_TRIGGERS = [*TRIGGERS, *(pytest.param(name, marks=pytest.mark.pg_only) for name in ONLY_ON_POSTGRES)]


@pytest.mark.parametrize("name", ALL_TRIGGERS)
def test_the_refusal_is_the_triggers_own(name: str) -> None:
    """Without its trigger the same statement goes through: these tests would notice if one were lost."""
    violation = next(item for item in VIOLATIONS if str(item) == GUARDED[name])
    params = violation.given()
    with transaction.atomic():
        drop_trigger(name, existing_triggers()[name])
        assert execute(violation.sql, params) == 1
        transaction.set_rollback(True)
