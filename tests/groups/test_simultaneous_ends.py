"""Members that end in the same instant: the group ends once, and is reported once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from django.db import OperationalError, connection, transaction

from jobs import db
from jobs.engine import finish
from jobs.engine.finish import JobResult
from jobs.models import ConcurrencyLimit, GroupStatus, Job, JobGroup
from jobs.outcomes import Completed
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.chaos import group_pairs
from tests.support.executor import WORKER, claim_next
from tests.support.locks import is_lock_awaited
from tests.support.worker_processes import Fleet, wait_until


def test_two_members_that_end_at_once_end_their_group_once(fleet: Fleet, chance: random.Random) -> None:
    verdict = group_pairs.run(fleet, chance, groups=60)
    print(verdict)
    assert not verdict.broken, str(verdict)


@pytest.mark.pg_only  # on SQLite there is only one writer at a time
def test_without_the_groups_lock_some_group_never_ends(fleet: Fleet, chance: random.Random) -> None:
    verdict = group_pairs.run(fleet, chance, groups=6, sabotage="skip_group_locks", slots=1)
    print(verdict)
    assert any("the groups ended as" in violation for violation in verdict.broken)


@pytest.fixture
def host_repeats_reads(transactional_db: None) -> Iterator[None]:
    """Run the transactions of this thread under REPEATABLE READ, as the host's settings ask for."""
    from psycopg import IsolationLevel

    before = dict(connection.settings_dict["OPTIONS"])
    connection.close()
    connection.settings_dict["OPTIONS"]["isolation_level"] = IsolationLevel.REPEATABLE_READ
    yield
    connection.close()
    connection.settings_dict["OPTIONS"] = before


class Finish(threading.Thread):
    """A worker that finishes a member, and commits when another transaction waits for the group."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        assert job.lease_token is not None
        self.result = JobResult(job.pk, job.lease_token, Completed(), job.group_id)
        self.has_finished = threading.Event()

    def run(self) -> None:
        db.use_own_connection()
        with closing(db.connection()), db.atomic():
            finish.finish([self.result], actor=WORKER)
            self.has_finished.set()
            wait_until(is_lock_awaited, what="the cancel waits for the group")


@pytest.fixture
def pair(host_repeats_reads: None) -> tuple[JobGroup, Finish, Job]:
    """A group whose first member is about to finish, and whose second can be cancelled."""
    ConcurrencyLimit.objects.all().delete()
    group = groups.create([{"job_type": "sample.noop"}] * 2, mode="parallel")
    running = claim_next()
    assert running is not None
    return group, Finish(running), Job.objects.get(group=group, status=Status.QUEUED)


@pytest.mark.pg_only
def test_a_group_ends_although_its_host_repeats_reads(pair: tuple[JobGroup, Finish, Job]) -> None:
    group, worker, waiting = pair
    worker.start()
    worker.has_finished.wait(30)
    job_services.cancel(waiting.pk)
    worker.join()
    group.refresh_from_db()
    assert group.status == GroupStatus.PARTIAL


@pytest.mark.pg_only
def test_a_cancel_inside_a_transaction_that_repeats_reads_fails_rather_than_leave_its_group_open(
    pair: tuple[JobGroup, Finish, Job],
) -> None:
    group, worker, waiting = pair
    worker.start()
    worker.has_finished.wait(30)
    with pytest.raises(OperationalError, match="could not serialize"), transaction.atomic():
        job_services.cancel(waiting.pk)
    worker.join()
    job_services.cancel(waiting.pk)
    group.refresh_from_db()
    assert group.status == GroupStatus.PARTIAL
