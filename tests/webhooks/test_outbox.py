"""What somebody wants to hear is written down with the move itself: nothing is missed, nothing is told of a move that
was taken back, and where nobody listens a move costs what it would cost without webhooks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs import groups, hooks
from jobs import services as jobs
from jobs.contrib.tasks import ends
from jobs.engine import ending
from jobs.models import Job, JobEvent
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import Status
from tests import executor
from tests.factories import JobFactory
from tests.snapshots import everything
from tests.webhooks.scenes import TYPE, completed, deliveries, endpoint, enqueued, handed_out, owed, unpacked
from tests.worker.harness import until
from webhooks import audiences, events, interest, outbox, services
from webhooks.interest import listening
from webhooks.models import WebhookMessage

pytestmark = pytest.mark.django_db


def told_of(job: Job) -> list[str]:
    return [event for event, job_id in owed() if job_id == job.pk]


def test_every_arrow_of_a_life_is_told_as_its_event() -> None:
    endpoint()
    job = enqueued(hold=True)
    assert told_of(job) == []
    jobs.release(job.pk)
    running = executor.take(job)
    jobs.pause(job.pk)
    assert running.lease_token is not None
    ending.stop(job.pk, running.lease_token, actor=executor.WORKER)
    jobs.resume(job.pk)
    running = executor.take(job)
    assert running.lease_token is not None
    ending.hand_back(job.pk, running.lease_token, actor=executor.WORKER, reason="shutdown")
    executor.complete(executor.take(job))
    assert told_of(job) == [
        "job.queued",
        "job.started",
        "job.paused",
        "job.resumed",
        "job.started",
        "job.queued",
        "job.started",
        "job.completed",
    ]


ENDS: dict[str, Callable[[], Job]] = {
    "job.completed": completed,
    "job.failed": lambda: executor.fail(executor.take(enqueued())),
    "job.skipped": lambda: _finished(Skipped("nothing to do")),
    "job.cancelled": lambda: jobs.cancel(enqueued().pk),
}


def _finished(outcome: Any) -> Job:
    job = executor.take(enqueued())
    executor.finish(job, outcome)
    return job


@pytest.mark.parametrize("event", ENDS)
def test_each_end_is_told_once_as_what_it_is(event: str) -> None:
    endpoint()
    job = ENDS[event]()
    assert [each for each in told_of(job) if each not in ("job.queued", "job.started")] == [event]


def test_a_failure_that_is_retried_names_the_retry_and_the_retry_is_told_too() -> None:
    endpoint()
    job = executor.fail(executor.take(enqueued()), retry_in=10)
    unpacked()
    (failed,) = WebhookMessage.objects.filter(event="job.failed")
    assert failed.retried_by == job.retried_by.pk
    assert told_of(job.retried_by) == ["job.queued"]


def test_the_end_of_a_group_is_told_once_for_each_round() -> None:
    endpoint("https://example.org/", "group.finished")
    made = groups.create([{"job_type": TYPE}, {"job_type": TYPE}])
    for _ in range(2):
        assert list(WebhookMessage.objects.values_list("event", flat=True)) == []
        taken = executor.take_next()
        assert taken is not None
        executor.fail(taken)
    groups.retry(made.pk)
    while (taken := executor.take_next()) is not None:
        executor.complete(taken)
    handed_out()
    told = [WebhookMessageBody(each) for each in WebhookMessage.objects.order_by("pk")]
    assert [(each.data["round"], each.data["status"]) for each in told] == [(1, "FAILED"), (2, "COMPLETED")]
    assert [len(each.data["jobs"]) for each in told] == [2, 2]
    assert told[0].data["progress"] == {"total": 2, "by_status": {"FAILED": 2}}


class WebhookMessageBody:
    def __init__(self, message: WebhookMessage) -> None:
        import json

        self.document = json.loads(bytes(message.body or b""))
        self.data = self.document["data"]


FILTERS: dict[str, tuple[list[str], bool]] = {
    "everything": (["*"], True),
    "all of jobs": (["job.*"], True),
    "just this": (["job.completed"], True),
    "this among others": (["job.failed", "job.completed"], True),
    "something else": (["job.failed"], False),
    "groups": (["group.finished"], False),
}


@pytest.mark.parametrize("name", FILTERS)
def test_an_endpoint_is_owed_what_it_asked_for(name: str) -> None:
    said, wanted = FILTERS[name]
    endpoint("https://example.org/", *said)
    job = completed()
    assert ("job.completed" in told_of(job)) is wanted


def test_nothing_is_owed_to_other_tenants_or_to_the_disabled() -> None:
    endpoint(tenant="acme")
    endpoint(enabled=False)
    job = completed()
    assert told_of(job) == []


def test_one_row_an_event_however_many_want_it() -> None:
    ids = {endpoint("https://example.org/", "job.completed").pk for _ in range(5)}
    completed()
    unpacked()
    (message,) = WebhookMessage.objects.all()
    assert set(audiences.members([message.audience_id])[message.audience_id]) == ids
    handed_out()
    assert {each.endpoint_id for each in deliveries()} == ids
    assert len({each.message_id for each in deliveries()}) == 1


# ---------------------------------------------------------------------- exactly what was committed


def _moves() -> dict[str, tuple[str, Callable[[], Any]]]:
    """One move of each way in which moves are made, and what it is told as."""
    return {
        "enqueue": ("job.queued", lambda: jobs.enqueue(TYPE)),
        "enqueue with a key": ("job.queued", lambda: jobs.enqueue(TYPE, idempotency_key="k")),
        "enqueue many": ("job.queued", lambda: jobs.enqueue_many([{"job_type": TYPE}] * 3)),
        "claim": ("job.started", executor.take_next),
        "cancel": ("job.cancelled", lambda: jobs.cancel(Job.objects.queued()[0].pk)),
        "finish": ("job.completed", lambda: executor.finish(Job.objects.running()[0], Completed())),
        "finish badly": ("job.failed", lambda: executor.finish(Job.objects.running()[0], Failed("e", "r", retry_in=9))),
        "birth of a retry": (
            "job.queued",
            lambda: executor.finish(Job.objects.running()[0], Failed("e", "r", retry_in=9)),
        ),
        "retry": ("job.queued", lambda: jobs.retry(Job.objects.get(status=Status.FAILED).pk)),
        "finish and claim": ("job.completed", _exchange),
        "claim after a finish": ("job.started", _exchange),
    }


def _exchange() -> None:
    """As a worker does it where it can: one statement for both."""
    from jobs.engine.claim import Claimer, Serves
    from jobs.registry import registry

    job = Job.objects.running()[0]
    assert job.lease_token is not None
    claimer = Claimer("worker-2", Serves(types=tuple(registry.local_names())), life=f"worker-2@{uuid4()}")
    claimer._limited = False
    claim = claimer.parts([0], lease_sec=30)
    end = ending.End(job.pk, job.lease_token, Completed())
    done = None if claim is None else ending.finish_and(claim, [end], actor=executor.WORKER)
    if done is None:
        ending.finish([end], actor=executor.WORKER)
        claimer.claim([0], lease_sec=30)
        return
    _, rows = done
    claimer.taken(rows) or claimer.claim([0], lease_sec=30)


@pytest.fixture(autouse=True)
def no_tasks() -> Iterator[None]:
    """As in a site that has none: they hear of every failure, and so it is never told within its statement."""
    hooks.forget(ends.hear)
    yield
    ends.listen()


@pytest.fixture
def no_limits() -> None:
    from jobs.models import ConcurrencyLimit

    ConcurrencyLimit.objects.all().delete()


@pytest.mark.usefixtures("no_limits")
@pytest.mark.parametrize("move", _moves())
@pytest.mark.parametrize("memory", ["nothing", "another", "it", "everything"])
def test_whatever_a_process_remembers_of_endpoints_it_tells_them(move: str, memory: str) -> None:
    event, make = _moves()[move]
    JobFactory.create()
    JobFactory.create(running=True)
    JobFactory.create(failed=True)
    endpoint("https://example.org/", event)
    remembered = {"nothing": [], "another": ["job.skipped"], "it": [event], "everything": events.EVENTS}
    listening._wanted, listening._looked = frozenset(remembered[memory]), time.monotonic()
    make()
    assert {each for each, _ in owed()} == {event}


@pytest.mark.pg_only
@pytest.mark.usefixtures("no_limits")
@pytest.mark.parametrize("move", [name for name in _moves() if name not in ("cancel",)])
def test_without_the_guard_it_would_be_missed(move: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event, make = _moves()[move]
    JobFactory.create()
    JobFactory.create(running=True)
    JobFactory.create(failed=True)
    endpoint("https://example.org/", event)
    monkeypatch.setattr(interest.Listening, "unwanted", lambda self, *kinds: "true")
    monkeypatch.setattr(interest.Listening, "look", lambda self, *kinds: False)
    make()
    assert owed() == []


@pytest.mark.parametrize("move", _moves())
def test_a_move_that_is_taken_back_is_told_to_nobody(move: str) -> None:
    JobFactory.create()
    JobFactory.create(running=True)
    JobFactory.create(failed=True)
    endpoint()
    before = everything()
    with transaction.atomic():
        _moves()[move][1]()
        transaction.set_rollback(True)
    assert everything() == before


@pytest.mark.parametrize("move", _moves())
@pytest.mark.parametrize("heard", [False, True], ids=["knows nothing", "knows it"])
def test_a_move_whose_outbox_cannot_be_written_is_not_made(move: str, heard: bool) -> None:
    JobFactory.create()
    JobFactory.create(running=True)
    JobFactory.create(failed=True)
    endpoint()
    if heard:
        listening.look()
    with connection.cursor() as cursor:
        for table in ("jobscheduler_webhookmessage", "jobscheduler_webhookbundle"):
            cursor.execute(REFUSED[connection.vendor].format(table=table))
    before = everything()
    with pytest.raises(DatabaseError), transaction.atomic():
        _moves()[move][1]()
    assert everything() == before


REFUSED = {
    "postgresql": "ALTER TABLE {table} ADD CONSTRAINT full_up CHECK (false) NOT VALID",
    "sqlite": """CREATE TRIGGER full_up_{table} BEFORE INSERT ON {table}
                 BEGIN SELECT RAISE(ABORT, 'full up'); END""",
}


def test_an_idempotent_replay_is_not_told_again() -> None:
    endpoint("https://example.org/", "job.queued")
    for _ in range(3):
        job = jobs.enqueue(TYPE, idempotency_key="once")
    assert told_of(job) == ["job.queued"]


def test_a_replayed_finish_is_not_told_again() -> None:
    endpoint("https://example.org/", "job.completed")
    job = executor.take(enqueued())
    for _ in range(3):
        executor.finish(job, Completed())
    assert told_of(job) == ["job.completed"]


def test_an_expired_lease_is_told_as_a_failure() -> None:
    endpoint("https://example.org/", "job.failed")
    job = JobFactory.create(running=True)
    with transaction.atomic():
        ending.expire([job], cause=None, error="lease expired", tell=lambda _: {}, retry_in=lambda _: None)  # type: ignore[arg-type]
    assert told_of(job) == ["job.failed"]


# ---------------------------------------------------------------------- what it costs


@pytest.fixture
def without_us() -> Iterator[Callable[[], None]]:
    yield lambda: hooks.forget(outbox.write)
    hooks.listen(outbox.write, required=True, interest=listening)


def _statements(make: Callable[[], Any]) -> int:
    with CaptureQueriesContext(
        connection,
    ) as asked:
        make()
    return len(asked)


@pytest.mark.pg_only
@pytest.mark.usefixtures("no_limits")
@pytest.mark.parametrize("events", [[], ["job.skipped", "group.finished"]], ids=["no endpoint", "other events"])
@pytest.mark.parametrize("move", ["enqueue", "enqueue many", "finish", "finish badly", "finish and claim"])
def test_a_move_that_nobody_wants_to_hear_of_takes_no_more_statements_than_without_webhooks(
    move: str, events: list[str], without_us: Callable[[], None]
) -> None:
    if events:
        endpoint("https://example.org/", *events)
    JobFactory.create_batch(3)
    JobFactory.create_batch(3, running=True)
    _moves()[move][1]()  # what is put together once is no cost of a move
    with_us = _statements(_moves()[move][1])
    without_us()
    assert with_us == _statements(_moves()[move][1])


@pytest.mark.pg_only
def test_after_the_last_endpoint_has_gone_moves_are_quick_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest, "DOUBT_SEC", 0.0)
    made = endpoint("https://example.org/", "job.queued")
    jobs.enqueue(TYPE)
    assert _statements(lambda: jobs.enqueue(TYPE)) > 1
    services.delete(made.pk)
    jobs.enqueue(TYPE)
    assert _statements(lambda: jobs.enqueue(TYPE)) == 1


# ---------------------------------------------------------------------- against endpoints that appear meanwhile


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
def test_no_move_after_an_endpoints_commit_is_missed() -> None:
    """Jobs are submitted by many at once while endpoints come and go."""
    assert _missed() == []


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
def test_moves_would_be_missed_without_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interest.Listening, "unwanted", lambda self, *kinds: "true")
    assert _missed() != []


def _missed() -> list[Any]:
    """Jobs whose birth came after an endpoint's, was committed while that listened, and was not told."""
    stop = threading.Event()
    due: set[Any] = set()

    def submit() -> None:
        while not stop.is_set():
            jobs.enqueue(TYPE)
        connection.close()

    crowd = [threading.Thread(target=submit) for _ in range(4)]
    for each in crowd:
        each.start()
    try:
        for _ in range(15):
            made = endpoint("https://example.org/", "job.queued")
            since = _now()
            _await_jobs(10)
            born = JobEvent.objects.filter(kind="SUBMITTED", at__gt=since)
            due.update(born.values_list("job_id", flat=True))
            services.update(made.pk, {"enabled": False})
    finally:
        stop.set()
        for each in crowd:
            each.join()
    return sorted(due - {job_id for _event, job_id in owed()})


def _now() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def _await_jobs(number: int) -> None:
    goal = Job.objects.count() + number
    until(lambda: Job.objects.count() >= goal)
