"""Django's connection pool is for handlers: a worker's own threads do not wait for a connection that these hold."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections

from jobs import db
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.worker_processes import FAST_SETTINGS, Fleet, list_attempts, wait_for_status

pytestmark = pytest.mark.pg_only
POOL_SIZE = 4  # psycopg_pool's default


def test_handlers_that_hold_every_pooled_connection_cost_no_lease(fleet: Fleet) -> None:
    """For several leases; beside them a job with a stop request, which only a heartbeat reads in time."""
    worker = fleet.start(f"--concurrency={POOL_SIZE}", env={"POOLED": "1"})
    long = [
        job_services.enqueue("sample.query", {"seconds": 2.5 * FAST_SETTINGS["LEASE_SEC"]})
        for _ in range(POOL_SIZE - 1)
    ]
    endless = job_services.enqueue("sample.query", {"seconds": 600})
    wait_for_status(endless.pk, Status.RUNNING, fleet=fleet)
    job_services.cancel(endless.pk)
    wait_for_status(endless.pk, Status.CANCELLED, fleet=fleet)
    for made in long:
        wait_for_status(made.pk, Status.COMPLETED, Status.FAILED, fleet=fleet)
    assert [job.status for made in long for job in list_attempts(made.pk)] == [Status.COMPLETED] * len(long)
    after = job_services.enqueue("sample.query", {"seconds": 0})
    wait_for_status(after.pk, Status.COMPLETED, fleet=fleet)
    assert "lost the leases" not in worker.output
    assert "cannot be reached" not in worker.output


@pytest.mark.parametrize(("pool", "concurrency"), [(True, 5), ({"max_size": 8}, 9), ({"min_size": 2}, 3)])
def test_a_pool_with_fewer_connections_than_slots_is_a_refusal_to_start(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, pool: object, concurrency: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict["OPTIONS"], "pool", pool)
        with pytest.raises(CommandError) as refusal:
            call_command("worker", f"--concurrency={concurrency}", skip_checks=True)
    assert f"fewer than the {concurrency} handlers" in str(refusal.value)
    assert refusal.value.returncode == 2


def test_only_a_pool_or_a_stricter_isolation_asks_for_a_connection_of_our_own(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psycopg import IsolationLevel

    theirs = connections[connection.alias]
    db.use_own_connection()
    assert connections[connection.alias] is theirs
    monkeypatch.setitem(theirs.settings_dict["OPTIONS"], "isolation_level", IsolationLevel.SERIALIZABLE)
    db.use_own_connection()
    own = connections[connection.alias]
    try:
        assert own is not theirs
        db.use_own_connection()
        assert connections[connection.alias] is own
        with own.cursor() as cursor, db.atomic():
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("read committed",)
    finally:
        own.close()
        connections[connection.alias] = theirs
