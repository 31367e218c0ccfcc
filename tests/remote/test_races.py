"""Concurrent pollers: limits hold exactly over any number of servers, and a job is started by one of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from jobs.actors import PYTHON
from jobs.models import Job, JobRun
from jobs.services import remote
from jobs.states import Status
from tests.support.http_client import HttpClient
from tests.support.remote_client import RemoteClient
from tests.support.remote_workers import ADDON, RemoteWorkers
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until

SERVERS, POLLERS, JOBS, LIMIT = 2, 6, 40, 3
LIMITED_SETTINGS = {**LONG_LEASE_SETTINGS, "LIMITS": {"global": LIMIT}}


@pytest.fixture
def workers(fleet: Fleet) -> Iterator[RemoteWorkers]:
    with RemoteWorkers(fleet) as workers:
        yield workers
        print(workers.logs())


class Poller(threading.Thread):
    """Start every offered job, hold it for a moment and complete it, until all jobs are completed."""

    def __init__(self, number: int, url: str, token: str, done: threading.Event) -> None:
        super().__init__(daemon=True)
        self.start_body = {"worker_id": f"poller-{number}"}
        self.caller, self.done = HttpClient(url, token), done
        self.statuses: Counter[int] = Counter()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self.done.is_set():
                offers = self.caller.parse(self.caller.get(f"/queue/dispatchable?addon_id={ADDON}&limit={LIMIT}"))
                for offer in offers["items"]:
                    self.run_job(offer["job_id"])
        except Exception as error:  # noqa: BLE001 — reported to the test, which fails with it
            self.failure = error

    def run_job(self, job_id: str) -> None:
        response = self.caller.post(f"/queue/jobs/{job_id}/start", self.start_body)
        assert response is not None
        self.statuses[response[0]] += 1
        if response[0] == 200:
            time.sleep(0.01)  # the work
            lease = self.caller.parse(response)["lease_id"]
            self.caller.parse(self.caller.post(f"/queue/jobs/{job_id}/complete", {"lease_id": lease, "state": "DONE"}))


def drain(workers: RemoteWorkers, sabotage: str = "") -> tuple[int, list[Poller]]:
    """Run all jobs with all pollers over all servers; return the peak of active jobs, and the pollers."""
    for number in range(JOBS):
        fields: dict[str, Any] = {"addon_id": ADDON, "job_type": "remote.work", "payload": {"number": number}}
        remote.submit(fields, actor=PYTHON)
    urls = [workers.start_server(settings=LIMITED_SETTINGS, sabotage=sabotage) for _ in range(SERVERS)]
    done = threading.Event()
    pollers = [Poller(number, urls[number % SERVERS], workers.token, done) for number in range(POLLERS)]
    for poller in pollers:
        poller.start()
    peak = 0

    def is_drained() -> bool:
        nonlocal peak
        peak = max(peak, Job.objects.active().count())
        return not Job.objects.exclude(status=Status.COMPLETED).exists() or any(poller.failure for poller in pollers)

    wait_until(is_drained, 90, workers.logs)
    done.set()
    for poller in pollers:
        poller.join()
    assert [poller.failure for poller in pollers if poller.failure] == []
    return peak, pollers


def test_no_number_of_servers_and_pollers_exceeds_a_limit(workers: RemoteWorkers) -> None:
    peak, pollers = drain(workers)
    assert peak <= LIMIT
    assert sum((poller.statuses for poller in pollers), Counter())[200] == JOBS
    assert set().union(*(poller.statuses for poller in pollers)) <= {200, 409}
    assert JobRun.objects.filter(status=Status.COMPLETED).count() == JOBS


@pytest.mark.pg_only  # SQLite has one writer at a time: a count cannot be outdated
def test_offers_that_are_counted_without_a_lock_exceed_it(workers: RemoteWorkers) -> None:
    peak, _ = drain(workers, sabotage="skip_limit_locks")
    assert peak > LIMIT


@pytest.mark.django_db(transaction=True)
def test_one_job_is_started_by_one_of_many(settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": None}}
    first = RemoteClient()
    job_id = first.submit()
    first.poll()
    statuses: list[int] = []
    barrier = threading.Barrier(8)

    def start_job(number: int) -> None:
        barrier.wait()
        statuses.append(RemoteClient(first.api, worker=f"indexer-{number}").try_start(job_id).status_code)
        connection.close()

    _run_concurrently(start_job, 8)
    assert Counter(statuses) == {200: 1, 409: 7}


@pytest.mark.django_db(transaction=True)
def test_one_slot_gets_one_of_many_jobs(settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": None}}
    worker = RemoteClient()
    ids: list[UUID] = [worker.submit() for _ in range(8)]
    worker.poll()
    codes: list[Any] = []
    barrier = threading.Barrier(8)

    def start_job(number: int) -> None:
        barrier.wait()
        codes.append(worker.try_start(ids[number]).json().get("code"))
        connection.close()

    _run_concurrently(start_job, 8)
    assert Counter(codes) == {None: 1, "slot_busy": 7}
    assert Job.objects.filter(status=Status.RUNNING).count() == 1


def _run_concurrently(target: Any, count: int) -> None:
    threads = [threading.Thread(target=target, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
