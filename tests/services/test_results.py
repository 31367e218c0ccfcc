"""What became of a job, and waiting for it: the end of the retry chain, woken by its commit, on one connection."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models.functions import Now

import jobs
from jobs import notifications
from jobs.engine import waiters
from jobs.engine.maintenance import runner
from jobs.errors import InvalidInput, NotFound, WaitInTransaction, WaitTimeout
from jobs.models import Job, JobGroup, Waiter
from jobs.models.expressions import from_now
from jobs.outcomes import Completed, Failed, Skipped
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.testing import drain
from tests.support.executor import claim, complete, fail, finish
from tests.support.worker_processes import MANAGE, Fleet, wait_until

PATIENCE_SEC = 20.0  # less than any poll of `only_news`
HAS_ROWS = connection.vendor == "postgresql"


@pytest.fixture
def only_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters look at the beginning, and then only when they hear of something."""
    for name in ("FIRST_POLL_SEC", "MAX_POLL_SEC", "MAX_LISTENING_POLL_SEC"):
        monkeypatch.setattr(waiters, name, 600.0)


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    wait_until(lambda: waiters._thread is None)  # that of an earlier test may listen
    with ThreadPoolExecutor(250) as executor:
        yield executor
        wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "waiter"])


def wait_in_background(executor: ThreadPoolExecutor, job_id: Any, timeout: float = 40.0) -> Future[Any]:
    """Start a wait, and return once its thread waits for news of the latest attempt."""
    future = executor.submit(jobs.wait, job_id, timeout)
    wait_until(lambda: future.done() or is_awaited(jobs.result(job_id).job))
    return future


def is_awaited(job: Job) -> bool:
    if HAS_ROWS:
        return Waiter.objects.filter(job_id=job.pk).exists()
    thread = waiters._thread
    return thread is not None and any(call.job_id == job.pk and job.status in call.state for call in thread._calls)


# results


@pytest.mark.django_db
def test_a_result_is_that_of_the_latest_attempt() -> None:
    first = job_services.enqueue("sample.add", {"a": 1, "b": 2})
    assert (jobs.result(first.pk).is_finished, jobs.result(first.pk).value) == (False, None)
    fail(claim(first), retry_in=3600)
    assert jobs.result(first.pk).status == Status.QUEUED
    job_services.retry(first.pk)
    drain()

    result = jobs.result(str(first.pk))

    assert (result.status, result.value, result.is_finished, result.error) == (Status.COMPLETED, 3, True, "")
    assert result.job == first.latest == result.job.latest
    assert result.job.attempt == 2
    first.refresh_from_db()
    assert first.status == Status.FAILED


@pytest.mark.django_db
@pytest.mark.parametrize("call", [jobs.result, jobs.wait])
@pytest.mark.parametrize("job_id", [uuid4(), "no-id"], ids=["unknown", "malformed"])
def test_a_job_that_is_not_there_is_not_found(call: Callable[[Any], Any], job_id: Any) -> None:
    with pytest.raises(NotFound):
        call(job_id)


@pytest.mark.django_db
@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), 1e10, "30", True, timedelta(days=-1), [1]])
def test_a_bad_timeout_is_refused_by_name(timeout: Any) -> None:
    job = job_services.enqueue("sample.add", {"a": 1, "b": 2})
    with pytest.raises(InvalidInput, match="timeout: must be"):
        jobs.wait(job.pk, timeout=timeout)


@pytest.mark.django_db
def test_in_the_transaction_of_a_test_only_what_has_run_can_be_waited_for() -> None:
    job = job_services.enqueue("sample.add", {"a": 1, "b": 2})
    with pytest.raises(TimeoutError, match=r"it is QUEUED; .* drain\(\)"):
        jobs.wait(job.pk)
    drain()
    assert jobs.wait(job.pk) == 3
    with pytest.raises(WaitInTransaction, match="within a transaction"), transaction.atomic():
        jobs.wait(job.pk)


# ends


@pytest.mark.django_db(transaction=True)
def test_a_failure_that_is_retried_and_a_snooze_are_not_the_end(fleet: Fleet, background: ThreadPoolExecutor) -> None:
    failing = job_services.enqueue("sample.fail", {"times": 2})
    hopeless = job_services.enqueue("sample.fail", max_retries=1)
    snoozing = job_services.enqueue("sample.snooze", {"times": 2, "seconds": 0.2})
    futures = [wait_in_background(background, job.pk) for job in (failing, hopeless, snoozing)]
    fleet.start()

    assert (futures[0].result(PATIENCE_SEC), futures[2].result(PATIENCE_SEC)) == (3, 2)
    with pytest.raises(jobs.JobFailed, match="is FAILED in attempt 2: RuntimeError: attempt 2 failed") as failed:
        futures[1].result(PATIENCE_SEC)
    assert (failed.value.job_id, failed.value.status) == (hopeless.latest.pk, Status.FAILED)
    assert 'raise RuntimeError(f"attempt' in failed.value.error


def end_by_result(job: Job) -> None:
    finish(claim(job), Completed({"result": 7}))


def end_by_skip(job: Job) -> None:
    finish(claim(job), Skipped("nothing to do"))


def end_by_failure(job: Job) -> None:
    finish(claim(job), Failed("Traceback: boom", "boom"))


def end_after_retry(job: Job) -> None:
    fail(claim(job), retry_in=3600)
    wait_until(lambda: is_awaited(job.latest))
    job_services.retry(job.pk)
    end_by_result(job.latest)


def end_by_cancel(job: Job) -> None:
    job_services.cancel(job.pk, reason="not needed")


def end_with_group(job: Job) -> None:
    groups.cancel(str(job.group_id), reason="not needed")


ENDS = {
    end_by_result: (None, ""),
    end_after_retry: (None, ""),
    end_by_failure: (jobs.JobFailed, "is FAILED: boom"),
    end_by_skip: (jobs.JobSkipped, "is SKIPPED: nothing to do"),
    end_by_cancel: (jobs.JobEndedCancelled, "is CANCELLED: not needed"),
    end_with_group: (jobs.JobEndedCancelled, "is CANCELLED: not needed"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("only_news")
@pytest.mark.parametrize("end", list(ENDS), ids=lambda end: end.__name__)
def test_each_kind_of_end_wakes_its_waiter_before_any_poll(end: Any, background: ThreadPoolExecutor) -> None:
    if end is end_with_group:
        group = jobs.group([{"job_type": "sample.noop"}]).enqueue()
        job = Job.objects.get(group=group)
    else:
        job = job_services.enqueue("sample.noop")
    future = wait_in_background(background, job.pk)

    end(job)

    error, message = ENDS[end]
    if error is None:
        assert future.result(PATIENCE_SEC) == 7
    else:
        with pytest.raises(error, match=message):
            future.result(PATIENCE_SEC)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not HAS_ROWS, reason="SQLite does not notify")
def test_an_end_notifies_only_while_a_process_waits(background: ThreadPoolExecutor) -> None:
    heard = []
    own = connection.copy()
    with own.cursor() as cursor:
        cursor.execute(f"LISTEN {notifications.ENDED_CHANNEL}")
    awaited, other = job_services.enqueue("sample.noop"), job_services.enqueue("sample.noop")
    future = wait_in_background(background, awaited.pk)
    for job in (awaited, other):
        complete(claim(job))
    future.result(PATIENCE_SEC)
    heard += [notification.payload for notification in own.connection.notifies(timeout=0.5)]
    own.close()
    assert heard == [str(awaited.pk)]


# bounds


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("timeout", [0, 0.3, timedelta(milliseconds=300)], ids=str)
def test_a_timeout_names_the_state_and_leaves_nothing(timeout: Any) -> None:
    job = job_services.enqueue("sample.noop")
    fail(claim(job), retry_in=3600)
    with pytest.raises(TimeoutError, match="it is QUEUED, attempt 2") as timed_out:
        jobs.wait(job.pk, timeout)
    assert isinstance(timed_out.value, WaitTimeout)
    wait_until(lambda: not Waiter.objects.exists())


@pytest.mark.django_db(transaction=True)
def test_within_a_transaction_it_raises_at_once() -> None:
    wait_until(lambda: waiters._thread is None)  # that of an earlier test
    with transaction.atomic():
        job = job_services.enqueue("sample.noop")
        with pytest.raises(WaitInTransaction, match=f"Job {job.pk} cannot be waited for"):
            jobs.wait(job.pk)
    assert waiters._thread is None


@pytest.mark.django_db(transaction=True)
def test_two_hundred_waiters_of_a_process_share_one_connection(background: ThreadPoolExecutor) -> None:
    waiting = [job_services.enqueue("sample.add", {"a": number, "b": 0}) for number in range(200)]
    before = count_connections()
    futures = [background.submit(jobs.wait, job.pk, 40) for job in waiting]
    wait_until(lambda: waiters._thread is not None and len(waiters._thread._calls) == len(waiting))
    wait_until(lambda: not HAS_ROWS or Waiter.objects.count() == len(waiting))

    assert count_connections() == before + 1
    drain()
    assert [future.result(PATIENCE_SEC) for future in futures] == list(range(200))
    wait_until(lambda: waiters._thread is None and count_connections() == before)
    assert not Waiter.objects.exists()


def count_connections() -> int:
    """Count those of the server; on SQLite the thread's, since SQLite keeps the files of closed connections open."""
    if not HAS_ROWS:
        return len([thread for thread in threading.enumerate() if thread.name == "waiter"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_a_process_that_dies_while_it_waits_leaves_nothing_that_stays(process_env: dict[str, str]) -> None:
    job = job_services.enqueue("sample.noop")
    code = f"import jobs; print('begins', flush=True); jobs.wait('{job.pk}', None)"
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), "shell", "-c", code],
        env=process_env,
        cwd=MANAGE.parent,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "begins\n" in iter(process.stdout.readline, "")
        wait_until(lambda: not HAS_ROWS or Waiter.objects.filter(job_id=job.pk, expires_at__gt=Now()).exists())
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    complete(claim(job))  # it notifies for the last time
    Waiter.objects.update(expires_at=from_now(-1))
    assert runner.run_tasks()["waiters"] == int(HAS_ROWS)
    assert not Waiter.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_rows_of_live_waiters_are_extended(monkeypatch: pytest.MonkeyPatch, background: ThreadPoolExecutor) -> None:
    monkeypatch.setattr(waiters, "RENEW_SEC", 0.0)
    job = job_services.enqueue("sample.noop")
    future = wait_in_background(background, job.pk)
    Waiter.objects.update(expires_at=from_now(1))
    wait_until(lambda: not Waiter.objects.filter(expires_at__lt=from_now(30)).exists())
    complete(claim(job))
    assert future.result(PATIENCE_SEC) is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not HAS_ROWS, reason="SQLite has no server")
def test_a_waiter_survives_the_loss_of_its_connection(background: ThreadPoolExecutor) -> None:
    job = job_services.enqueue("sample.noop")
    future = wait_in_background(background, job.pk)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    complete(claim(job))
    assert future.result(PATIENCE_SEC) is None


@pytest.mark.django_db(transaction=True)
def test_without_notifications_it_polls(monkeypatch: pytest.MonkeyPatch, background: ThreadPoolExecutor) -> None:
    monkeypatch.setattr(notifications.Listener, "can_listen", staticmethod(lambda: False))
    job = job_services.enqueue("sample.noop")
    future = background.submit(jobs.wait, job.pk, 40)
    wait_until(lambda: waiters._thread is not None and waiters._thread._calls)
    complete(claim(job))
    assert future.result(PATIENCE_SEC) is None
    assert not Waiter.objects.exists()


# async


@pytest.mark.django_db(transaction=True)
def test_coroutines_wait_without_threads(background: ThreadPoolExecutor) -> None:
    waiting = [job_services.enqueue("sample.add", {"a": number, "b": 0}) for number in range(20)]
    hopeless = job_services.enqueue("sample.hopeless")
    later = job_services.enqueue("sample.noop", not_before=timedelta(hours=1))

    async def wait_for_all() -> list[Any]:
        awaited = asyncio.gather(*(jobs.await_result(job.pk) for job in (*waiting, hopeless)), return_exceptions=True)
        abandoned = asyncio.create_task(jobs.await_result(later.pk))
        await asyncio.to_thread(wait_until, lambda: waiters._thread is not None and len(waiters._thread._calls) == 22)
        abandoned.cancel()
        background.submit(run_all)
        return [*(await awaited), (await jobs.aresult(waiting[3].pk)).value]

    *values, failure, value = async_to_sync(wait_for_all)()

    assert (values, value) == (list(range(20)), 3)
    assert isinstance(failure, jobs.JobFailed)
    wait_until(lambda: not Waiter.objects.exists())


def run_all() -> None:
    drain()
    connection.close()


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_that_is_cancelled_while_it_begins_to_wait_leaves_no_call(background: ThreadPoolExecutor) -> None:
    """The fixture waits for the end of the thread, which stays while it has calls."""
    job = job_services.enqueue("sample.noop", not_before=timedelta(hours=1))
    is_checking, may_go_on = threading.Event(), threading.Event()

    def hold() -> bool:
        is_checking.set()
        may_go_on.wait(PATIENCE_SEC)
        return False

    async def cancel_while_it_begins() -> None:
        task = asyncio.create_task(jobs.await_result(job.pk, timeout=None))
        await asyncio.to_thread(is_checking.wait, PATIENCE_SEC)
        task.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.services.results.db.is_in_transaction", hold)
        async_to_sync(cancel_while_it_begins)()


def test_a_call_keeps_its_first_result() -> None:
    """A second one raised an error, which ended the thread of all who wait."""
    call = waiters.Call(uuid4(), None)
    waiters._resolve(call, NotFound("first"))
    waiters._resolve(call, NotFound("second"))
    with pytest.raises(NotFound, match="first"):
        call.future.result(0)


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_gets_the_state_at_its_timeout() -> None:
    job = job_services.enqueue("sample.noop")
    with pytest.raises(WaitTimeout, match=r"within 0\.2 s: it is QUEUED\."):
        async_to_sync(jobs.await_result)(job.pk, timeout=0.2)


@pytest.mark.django_db(transaction=True)
def test_a_group_member_that_follows_a_failure_is_skipped() -> None:
    members = [{"job_type": "sample.hopeless"}, {"job_type": "sample.noop"}]
    group = jobs.group(members, mode="sequential", on_failure="skip").enqueue()
    drain()
    assert JobGroup.objects.get(pk=group.pk).finished_at
    with pytest.raises(jobs.JobSkipped):
        jobs.wait(Job.objects.get(group=group, group_index=1).pk)
