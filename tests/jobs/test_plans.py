"""The server keeps its plans; ours do not outlive the sizes of the tables that they were made for."""

from __future__ import annotations

import pytest
from django.db import connection

from jobs import services
from jobs.engine import ending
from jobs.engine.claim import Claim, Claimer, Serves
from jobs.engine.ending import End
from jobs.engine.sql import prepared
from jobs.models import ConcurrencyLimit
from jobs.outcomes import Completed
from tests import sample_jobs
from tests.executor import WORKER

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pg_only]
TYPE = sample_jobs.note.name
BATCH, TURNS = 25, 60
ROWS = BATCH * (TURNS + 2)


def rows_walked() -> int:
    """In how many rows of runs the last of many exchanges looked for its own, beginning with an empty table."""
    ConcurrencyLimit.objects.all().delete()
    connection.close()  # a server process that remembers nothing
    services.enqueue_many([{"job_type": TYPE, "params": {"text": "x"}}] * ROWS)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    claimer = Claimer("taker", Serves((TYPE,)), life="taker@1")
    claimer._limited = False
    held = claimer.claim(range(BATCH), lease_sec=30)
    for _ in range(TURNS):
        held = exchanged(claimer, held)
    connection.set_autocommit(False)
    try:
        before = read()
        exchanged(claimer, held)
        return read() - before
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def read() -> int:
    """As this server process has counted it, in this transaction and lately."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'jobscheduler_jobrun'")
        return int(cursor.fetchone()[0])


def exchanged(claimer: Claimer, held: list[Claim]) -> list[Claim]:
    ends = [End(each.id, each.lease_token, Completed()) for each in held]
    done = ending.finish_and(claimer.parts(range(BATCH), lease_sec=30), ends, actor=WORKER)
    assert done is not None
    return claimer.taken(done[1])


def test_a_plan_made_for_an_empty_table_is_given_up_when_it_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "FIRST_PLANS_SEC", 0.01)
    monkeypatch.setattr(prepared, "LAST_PLANS_SEC", 0.01)
    assert rows_walked() == 0


def test_it_would_be_kept_and_walk_all_rows_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "FIRST_PLANS_SEC", 3600.0)
    assert rows_walked() >= BATCH * TURNS
