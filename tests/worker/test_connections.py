"""The numbers of docs/connections.md, counted on the server while the processes do what the page says."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from django.db import connection

from jobs.management.doctor import WORKER_CONNECTIONS
from jobs.services import jobs as job_services
from jobs.services import tokens
from jobs.states import Status
from tests.support.web_process import WebProcess
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status, wait_until

pytestmark = pytest.mark.pg_only
IDLE_WORKER = 5  # loop, heartbeat, listener, housekeeping, webhooks
REPORTING_WORKER = IDLE_WORKER + 1  # and the writer of progress and log lines
THREADS = 8  # of the web process
POOL_SIZE = 4  # psycopg_pool's default: so many connections at least


def test_an_idle_worker_has_five_connections_whatever_its_slots(fleet: Fleet) -> None:
    fleet.start("--concurrency=16", settings=LONG_LEASE_SETTINGS)
    wait_until(lambda: count_connections() == IDLE_WORKER, what=describe_connections)


def test_a_worker_without_housekeeping_has_two_fewer(fleet: Fleet) -> None:
    fleet.start("--no-housekeeping", settings=LONG_LEASE_SETTINGS)
    wait_until(lambda: count_connections() == IDLE_WORKER - 2, what=describe_connections)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_busy_worker_has_six_and_one_for_each_handler_that_uses_the_database(fleet: Fleet, executor: str) -> None:
    fleet.start("--concurrency=4", f"--executor={executor}", settings=LONG_LEASE_SETTINGS)
    wait_for_status(job_services.enqueue("sample.talk", {"lines": 1}).pk, Status.COMPLETED, fleet=fleet)
    for _ in range(4):
        job_services.enqueue("sample.query", {"seconds": 600})
    wait_until(lambda: count_connections() == REPORTING_WORKER + 4, what=describe_connections)
    assert REPORTING_WORKER <= WORKER_CONNECTIONS


@pytest.mark.parametrize(("executor", "processes"), [("thread", 1), ("process", 3)])
def test_djangos_pool_opens_its_connections_beside_those_of_the_worker_in_every_process(
    fleet: Fleet, executor: str, processes: int
) -> None:
    """The worker's own process, and with the process executor that of each handler."""
    fleet.start("--concurrency=2", f"--executor={executor}", settings=LONG_LEASE_SETTINGS, env={"POOLED": "1"})
    for _ in range(2):
        job_services.enqueue("sample.query", {"seconds": 600})
    wait_until(lambda: count_connections() == IDLE_WORKER + processes * POOL_SIZE, what=describe_connections)


def test_a_web_process_has_one_for_each_thread_that_serves_a_request(fleet: Fleet) -> None:
    """Requests wait for a lock, all at once and more than there are threads."""
    _, token = tokens.create("connections", tenant="default", scopes=("read",))
    with WebProcess(fleet, LONG_LEASE_SETTINGS) as web, lock_jobs():
        for _ in range(2 * THREADS):
            threading.Thread(target=list_jobs, args=(web.port, token), daemon=True).start()
        holder = 1
        wait_until(lambda: count_connections() == THREADS + holder, what=describe_connections)


def list_jobs(port: int, token: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/jobs", headers={"Authorization": f"Bearer {token}"})
    try:
        urllib.request.urlopen(request, timeout=60).read()
    except OSError:  # the web process was killed
        return


@contextmanager
def lock_jobs() -> Iterator[None]:
    with closing(connection.copy()) as holder:
        holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute("LOCK TABLE jobscheduler_job IN ACCESS EXCLUSIVE MODE")
        yield


def count_connections() -> int:
    """Count the connections to this test's database, without this one."""
    return len(list_connections())


def describe_connections() -> str:
    return "\n".join(map(str, list_connections()))


def list_connections() -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, left(query, 100) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return list(cursor.fetchall())
