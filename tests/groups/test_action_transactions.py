"""Actions on large groups: batches commit alone, other writers get in between, a killed process is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from jobs.engine import groups as engine
from jobs.errors import WrongState
from jobs.models import GroupAction, GroupStatus, Job, JobGroup
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.signals import events_committed
from jobs.states import LIVE, TERMINAL, Status
from tests.groups import killed_action
from tests.support import executor
from tests.support.api_client import ApiClient
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ITEM: dict[str, Any] = {"job_type": "sample.noop", "max_retries": 0}
BATCHES = 3


@pytest.fixture
def each_commit() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Call a function after each commit that wrote events, in this thread."""
    receivers = []

    def connect(function: Callable[[], None]) -> None:
        def receive(**_: Any) -> None:
            function()

        events_committed.connect(receive)
        receivers.append(receive)

    yield connect
    for receiver in receivers:
        events_committed.disconnect(receiver)


def create(mode: str, members: int) -> JobGroup:
    return groups.create([ITEM] * members, mode=mode)


def cancel_first_member(group_id: Any) -> None:
    job_services.cancel(Job.objects.get(group_id=group_id, group_index=0).pk)


def fail_first_member(group_id: Any) -> None:
    job = executor.claim_next()
    assert job is not None
    executor.fail(job)
    engine.run_actions(group_id)


ENDINGS = [("parallel", groups.cancel), ("sequential", groups.cancel)]
ENDINGS += [("sequential", cancel_first_member), ("sequential", fail_first_member)]


@pytest.mark.parametrize(("mode", "end"), ENDINGS)
def test_one_transaction_ends_a_batch_of_members_at_most(
    mode: str, end: Callable[[Any], object], each_commit: Any
) -> None:
    members = BATCHES * engine.BATCH_SIZE
    group = create(mode, members)
    counts = [0]
    each_commit(lambda: counts.append(Job.objects.filter(group=group, status__in=TERMINAL).count()))
    end(group.pk)
    steps = [after - before for before, after in pairwise(counts)]
    assert (counts[-1], JobGroup.objects.get(pk=group.pk).is_terminal) == (members, True)
    assert max(steps) <= engine.BATCH_SIZE + 1


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("whole", [True, False], ids=["group", "first member"])
def test_one_transaction_inserts_a_batch_of_retries_at_most(mode: str, whole: bool, each_commit: Any) -> None:
    members = BATCHES * engine.BATCH_SIZE
    group = create(mode, members)
    groups.cancel(group.pk) if whole or mode == "parallel" else cancel_first_member(group.pk)
    counts = [members]
    each_commit(lambda: counts.append(Job.objects.filter(group=group).count()))
    if whole:
        groups.retry(group.pk)
    else:
        job_services.retry(Job.objects.get(group=group, group_index=0).pk)
    steps = [after - before for before, after in pairwise(counts)]
    assert counts[-1] == (members + 1 if mode == "parallel" and not whole else 2 * members)
    assert max(steps) <= engine.BATCH_SIZE + 1
    assert not GroupAction.objects.exists()


def test_a_transaction_of_the_caller_contains_no_batch_of_an_earlier_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 3)
    group = create("parallel", 10)
    with transaction.atomic():
        groups.cancel(group.pk)
        groups.retry(group.pk)
        assert Job.objects.filter(group=group).count() == 10
        assert Job.objects.filter(group=group, status=Status.CANCELLED).count() == 3
    retries = Job.objects.filter(group=group, retry_of__isnull=False)
    assert Counter(retries.values_list("status", flat=True)) == {Status.QUEUED: 10}
    assert not GroupAction.objects.exists()


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_other_tenants_submit_between_two_batches(verb: str, each_commit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 3)
    group = create("sequential", 8)
    if verb == "retry":
        groups.cancel(group.pk)
    unfinished: list[bool] = []

    def submit() -> None:
        with closing(connection):
            job_services.enqueue("sample.noop", tenant="other")
            unfinished.append(GroupAction.objects.filter(group=group).exists())

    def submit_from_another_connection() -> None:
        if threading.current_thread() is threading.main_thread() and len(unfinished) < 2:
            thread = threading.Thread(target=submit)
            thread.start()
            thread.join()

    each_commit(submit_from_another_connection)
    groups.cancel(group.pk) if verb == "cancel" else groups.retry(group.pk)
    assert unfinished == [True, True]
    assert Job.objects.filter(tenant="other").count() == 2
    assert not GroupAction.objects.exists()


def test_inside_a_transaction_of_the_caller_only_the_first_batch_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 3)
    group = create("parallel", 8)
    cancelled = Job.objects.filter(group=group, status=Status.CANCELLED)
    with transaction.atomic():
        groups.cancel(group.pk)
        assert cancelled.count() == 3
        transaction.set_rollback(True)
    assert (cancelled.count(), GroupAction.objects.count()) == (0, 0)
    with transaction.atomic():
        groups.cancel(group.pk)
    assert (cancelled.count(), JobGroup.objects.get(pk=group.pk).status) == (8, GroupStatus.CANCELLED)


def test_an_action_over_http_is_done_with_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 3)
    group = create("sequential", 8)
    api = ApiClient("operate", "submit")
    assert api.post(f"/job-groups/{group.pk}/cancel").json()["progress"]["by_status"] == {"CANCELLED": 8}
    answer = api.post(f"/job-groups/{group.pk}/retry").json()
    assert answer["progress"]["by_status"] == {"QUEUED": 1, "PENDING": 7}


def test_a_member_that_a_remote_program_cancels_ends_the_rest_with_its_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 3)
    group = create("sequential", 8)
    first = Job.objects.get(group=group, group_index=0)
    answer = ApiClient("submit", "operate").post(f"/system/scheduler/queue/jobs/{first.pk}/cancel")
    assert answer.status_code < 300, answer.content
    assert JobGroup.objects.get(pk=group.pk).status == GroupStatus.CANCELLED
    assert Job.objects.filter(group=group, status_reason="predecessor cancelled").count() == 7


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
@pytest.mark.parametrize("verbs", [("retry", "retry"), ("cancel", "retry"), ("cancel", "cancel")], ids=str)
def test_verbs_at_the_same_time_leave_a_group_that_is_either_open_or_ended(
    mode: str, verbs: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BATCH_SIZE", 3)
    group = create(mode, 20)
    if verbs == ("retry", "retry"):
        groups.cancel(group.pk)
    barrier = threading.Barrier(2)
    refusals, errors = [], []

    def apply(verb: str) -> None:
        with closing(connection):
            barrier.wait()
            try:
                groups.cancel(group.pk) if verb == "cancel" else groups.retry(group.pk)
            except WrongState as refusal:
                refusals.append(refusal)
            except DatabaseError as error:
                errors.append(error)

    threads = [threading.Thread(target=apply, args=[verb]) for verb in verbs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(refusals) <= 1
    assert not GroupAction.objects.exists()
    latest = list(groups.get_latest_attempts(group.pk))
    live = [job for job in latest if job.status in LIVE]
    assert len(latest) == 20
    assert JobGroup.objects.get(pk=group.pk).is_terminal == (not live)
    if verbs == ("retry", "retry"):
        assert {job.attempt for job in latest} == {2}
    if mode == "sequential" and live:
        assert [job.status for job in latest] == [Status.QUEUED] + [Status.PENDING] * 19


@pytest.mark.parametrize("verb", ["cancel", "cancel_first_member", "retry"])
def test_a_worker_finishes_the_action_of_a_process_that_was_killed_between_two_batches(
    verb: str, fleet: Fleet, process_env: dict[str, str]
) -> None:
    group = create("sequential", 3 * killed_action.BATCH_SIZE)
    if verb == "retry":
        groups.cancel(group.pk)
    command = [sys.executable, "-m", "tests.groups.killed_action", verb, str(group.pk)]
    killed = subprocess.run(command, env={**os.environ, **process_env}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert GroupAction.objects.filter(group=group).exists()
    assert not JobGroup.objects.get(pk=group.pk).is_terminal
    fleet.start(settings=LONG_LEASE_SETTINGS)
    end = GroupStatus.COMPLETED if verb == "retry" else GroupStatus.CANCELLED
    wait_until(lambda: JobGroup.objects.get(pk=group.pk).status == end, what=lambda: statuses(group))
    assert set(statuses(group)) == {str(end)}
    assert not GroupAction.objects.exists()


def test_a_worker_ends_the_rest_of_a_long_sequence_after_its_first_member_failed(fleet: Fleet) -> None:
    fleet.start(settings=LONG_LEASE_SETTINGS)
    items = [{**ITEM, "job_type": "sample.fail"}, *[ITEM] * (2 * engine.BATCH_SIZE)]
    group = groups.create(items, mode="sequential")
    wait_until(lambda: JobGroup.objects.get(pk=group.pk).is_terminal, what=lambda: Counter(statuses(group)))
    assert Counter(statuses(group)) == {"FAILED": 1, "CANCELLED": 2 * engine.BATCH_SIZE}


def statuses(group: JobGroup) -> list[str]:
    return list(groups.get_latest_attempts(group.pk).values_list("status", flat=True))
