"""Who waits for a job holds none that others may want: callers lock jobs in any order, for as long as they like."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.finish import FinishStatus, JobResult
from jobs.engine.sql.claim import renew_leases
from jobs.engine.worker import turn
from jobs.models import ConcurrencyLimit, Job
from jobs.outcomes import Completed
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import SAMPLE_TYPE, JobFactory
from tests.support.executor import WORKER
from tests.support.locks import is_lock_awaited
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pg_only]


class Exchange(threading.Thread):
    """Records results and claims as many jobs, in one turn, on a connection of its own."""

    def __init__(self, running: list[Job]) -> None:
        super().__init__()
        self.ends = [JobResult(job.pk, job.lease_token, Completed()) for job in running if job.lease_token is not None]
        self.done: Any = None

    def run(self) -> None:
        claimer = Claimer("taker", ServedJobs((SAMPLE_TYPE,)), process_key="taker@1")
        claimer._has_limits = False
        try:
            slots = range(len(self.ends))
            self.done = turn.take_plain_turn(claimer, self.ends, slots, actor=WORKER, lease_sec=30)
        finally:
            connection.close()


@pytest.fixture
def jobs(request: pytest.FixtureRequest) -> tuple[list[Job], list[Job]]:
    """So many that run, and that wait."""
    ConcurrencyLimit.objects.all().delete()
    return JobFactory.create_batch(request.param, running=True), JobFactory.create_batch(request.param, queued=True)


@pytest.mark.parametrize("jobs", [1, 3], indirect=True)
def test_a_worker_that_waits_to_end_a_job_holds_nothing_of_the_queue(jobs: tuple[list[Job], list[Job]]) -> None:
    """A caller may ask a running job to stop and then cancel a waiting one, all in one transaction."""
    running, waiting = jobs
    exchange = Exchange(running)
    with transaction.atomic():
        job_services.cancel(running[-1].pk)
        exchange.start()
        wait_until(is_lock_awaited, what="the end waits for the caller")
        free = Job.objects.select_for_update(nowait=True).filter(pk__in=[job.pk for job in waiting])
        assert len(free) == len(waiting)
        job_services.cancel(waiting[0].pk)
    exchange.join()
    verdicts, claimed = exchange.done
    assert set(verdicts.values()) == {FinishStatus.DONE}
    assert {claim.id for claim in claimed} == {job.pk for job in waiting[1:]}
    assert Job.objects.get(pk=waiting[0].pk).status == Status.CANCELLED


@pytest.mark.parametrize("jobs", [1, 3], indirect=True)
def test_an_end_that_waited_for_a_heartbeat_is_written_once(jobs: tuple[list[Job], list[Job]]) -> None:
    running, waiting = jobs
    exchange = Exchange(running)
    with transaction.atomic():
        leases = [(job.pk, job.lease_token) for job in running if job.lease_token is not None]
        assert len(renew_leases(connection, leases, 30)) == len(running)
        exchange.start()
        wait_until(is_lock_awaited, what="the end waits for the heartbeat")
    exchange.join()
    verdicts, claimed = exchange.done
    assert set(verdicts.values()) == {FinishStatus.DONE}
    assert [claim.id for claim in sorted(claimed, key=lambda claim: claim.lease_owner)] == [job.pk for job in waiting]
    assert {tuple(list_event_kinds(job)) for job in running} == {("COMPLETED",)}
    assert {tuple(list_event_kinds(job)) for job in waiting} == {("RUNNING",)}
