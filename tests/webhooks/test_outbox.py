"""Each event with a subscriber becomes a message in its own transaction: none is missed, none is reported of a
transition that was rolled back, whichever code or SQL made the transition."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from jobs.engine import finish
from jobs.engine.claim import Claimer, ServedJobs
from jobs.models import Job, JobEvent, JobGroup
from jobs.outcomes import Completed, Failed, Skipped
from jobs.services import groups
from jobs.services import jobs as jobs
from jobs.states import TRANSITIONS, EventKind, Status
from tests.factories import JobFactory
from tests.invariants.raw import execute
from tests.support import executor
from tests.support.pruning import delete_kept_rows
from tests.support.snapshots import dump_tables
from tests.support.webhooks import (
    TYPE,
    complete_job,
    create_endpoint,
    enqueue_job,
    fan_out_all,
    list_deliveries,
    list_messages,
)
from tests.support.worker_processes import wait_until
from webhooks import events, services
from webhooks.models import WebhookEndpoint, WebhookMessage, WebhookSubscription

pytestmark = pytest.mark.django_db


def list_reported_events(job: Job) -> list[str]:
    return [event for event, job_id in list_messages() if job_id == job.pk]


def test_every_transition_of_a_life_is_reported_as_its_event() -> None:
    create_endpoint()
    job = enqueue_job(hold=True)
    assert list_reported_events(job) == []
    jobs.release(job.pk)
    running = executor.claim(job)
    jobs.pause(job.pk)
    assert running.lease_token is not None
    finish.stop(job.pk, running.lease_token, actor=executor.WORKER)
    jobs.resume(job.pk)
    running = executor.claim(job)
    assert running.lease_token is not None
    finish.hand_back(job.pk, running.lease_token, actor=executor.WORKER, reason="shutdown")
    executor.complete(executor.claim(job))
    assert list_reported_events(job) == [
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
    "job.completed": complete_job,
    "job.failed": lambda: executor.fail(executor.claim(enqueue_job())),
    "job.skipped": lambda: _finish_job(Skipped("nothing to do")),
    "job.cancelled": lambda: jobs.cancel(enqueue_job().pk),
}


def _finish_job(outcome: Any) -> Job:
    job = executor.claim(enqueue_job())
    executor.finish(job, outcome)
    return job


@pytest.mark.parametrize("event", ENDS)
def test_each_end_is_reported_once_as_its_event(event: str) -> None:
    create_endpoint()
    job = ENDS[event]()
    assert [event for event in list_reported_events(job) if event not in ("job.queued", "job.started")] == [event]


def test_the_retry_of_a_failure_is_reported_too() -> None:
    create_endpoint()
    job = executor.fail(executor.claim(enqueue_job()), retry_in=10)
    assert list_reported_events(job.retried_by) == ["job.queued"]


def test_the_end_of_a_group_is_reported_once_for_each_round() -> None:
    create_endpoint("https://example.org/", "group.finished")
    group = groups.create([{"job_type": TYPE}, {"job_type": TYPE}])
    for _ in range(2):
        assert list_messages() == []
        claimed_job = executor.claim_next()
        assert claimed_job is not None
        executor.fail(claimed_job)
    groups.retry(group.pk)
    while (claimed_job := executor.claim_next()) is not None:
        executor.complete(claimed_job)
    messages = WebhookMessage.objects.order_by("pk")
    facts = list(messages.values_list("event", "group_id", "group_round", "group_status"))
    assert facts == [("group.finished", group.pk, 1, "FAILED"), ("group.finished", group.pk, 2, "COMPLETED")]
    assert messages[1].at == JobGroup.objects.get(pk=group.pk).finished_at


FILTERS: dict[str, tuple[list[str], bool]] = {
    "everything": (["*"], True),
    "all of jobs": (["job.*"], True),
    "just this": (["job.completed"], True),
    "this among others": (["job.failed", "job.completed"], True),
    "something else": (["job.failed"], False),
    "groups": (["group.finished"], False),
}


@pytest.mark.parametrize("name", FILTERS)
def test_an_endpoint_gets_the_events_it_subscribed_to(name: str) -> None:
    patterns, is_subscribed = FILTERS[name]
    create_endpoint("https://example.org/", *patterns)
    job = complete_job()
    assert ("job.completed" in list_reported_events(job)) is is_subscribed


def test_there_is_no_message_for_other_tenants_or_disabled_endpoints() -> None:
    create_endpoint(tenant="acme")
    create_endpoint(enabled=False)
    disabled = create_endpoint()
    services.update(disabled.pk, {"enabled": False})
    assert list_reported_events(complete_job()) == []
    services.update(disabled.pk, {"enabled": True})
    assert list_reported_events(complete_job()) == ["job.queued", "job.started", "job.completed"]


def test_two_tenants_get_their_own_events() -> None:
    ours, theirs = create_endpoint(tenant="ours"), create_endpoint(tenant="theirs")
    job, other = complete_job(tenant="ours"), complete_job(tenant="theirs")
    fan_out_all()
    assert {delivery.job_id for delivery in list_deliveries(endpoint=ours)} == {job.pk}
    assert {delivery.job_id for delivery in list_deliveries(endpoint=theirs)} == {other.pk}


def test_there_is_one_message_per_event_for_any_number_of_subscribers() -> None:
    ids = {create_endpoint("https://example.org/", "job.completed").pk for _ in range(5)}
    complete_job()
    assert [event for event, _ in list_messages()] == ["job.completed"]
    fan_out_all()
    assert {delivery.endpoint_id for delivery in list_deliveries()} == ids
    assert len({delivery.message_id for delivery in list_deliveries()}) == 1


def test_jobs_that_end_together_are_each_reported_as_they_ended() -> None:
    create_endpoint("https://example.org/", "job.failed", "job.completed")
    jobs.enqueue_many([{"job_type": TYPE}] * 4)
    claims = Claimer("worker-1", ServedJobs(types=(TYPE,))).claim(range(4), lease_sec=30)
    outcomes = (Completed(), Failed("e", "r"), Completed(), Failed("e", "r"))
    results = [
        finish.JobResult(claim.id, claim.lease_token, outcome) for claim, outcome in zip(claims, outcomes, strict=False)
    ]
    finish.finish(results, actor=executor.WORKER)
    expected = [
        ("job.completed" if isinstance(result.outcome, Completed) else "job.failed", result.job_id)
        for result in results
    ]
    assert Counter(list_messages()) == Counter(expected)


# ---------------------------------------------------------------------- the mapping


def test_every_transition_has_its_event_or_is_known_to_have_none() -> None:
    """Compare with the table of transitions; those without an event are listed here."""
    silent = {
        ("SUBMITTED", "PENDING"),
        ("DISPATCHING", "DISPATCHING"),
        ("WITHDRAWN", "QUEUED"),
        ("CANCEL_REQUESTED", "RUNNING"),
        ("PAUSE_REQUESTED", "RUNNING"),
        ("RESOLVED", "FAILED"),
        *(("RETRY_CREATED", str(status)) for status in ("COMPLETED", "FAILED", "SKIPPED", "CANCELLED")),
    }
    transitions = {(str(arrow.event), str(arrow.target)) for arrow in TRANSITIONS}
    mapped = {(str(transition.kind), str(transition.to_status)) for transition in events.EVENT_OF}
    assert transitions - mapped == silent
    assert mapped <= transitions
    assert set(events.EVENT_OF.values()) == set(events.EVENTS) - {events.GROUP_FINISHED}


def test_the_trigger_agrees_with_the_mapping() -> None:
    """Try every kind with every status."""
    create_endpoint()
    job = JobFactory.create()
    expected = Counter()
    for kind in EventKind:
        for status in Status:
            insert_event(job, kind=str(kind), to_status=str(status))
            if (event := events.EVENT_OF.get(events.EventKey(kind, status))) is not None:
                expected[event] += 1
    assert Counter(event for event, _ in list_messages()) == expected


# ---------------------------------------------------------------------- raw SQL


def insert_event(
    job: Job, kind: str = "COMPLETED", to_status: str = "COMPLETED", at: datetime | None = None, **extra: Any
) -> int:
    columns = {
        "job_id": job.pk,
        "kind": kind,
        "from_status": "",
        "to_status": to_status,
        "reason": "",
        "actor_kind": "cli",
        "actor_name": "",
        "at": at or timezone.now(),
        **extra,
    }
    values = ", ".join(f"%({name})s" for name in columns)
    return execute(f"INSERT INTO jobscheduler_jobevent ({', '.join(columns)}) VALUES ({values})", columns)


def test_an_event_inserted_by_raw_sql_is_delivered() -> None:
    endpoint = create_endpoint("https://example.org/", "job.completed")
    job = JobFactory.create(completed=True)
    insert_event(job)
    fan_out_all()
    assert [(delivery.endpoint_id, delivery.event, delivery.job_id) for delivery in list_deliveries()] == [
        (endpoint.pk, "job.completed", job.pk)
    ]


def test_an_event_that_is_older_than_an_hour_makes_no_message() -> None:
    """A restore or loaddata inserts such events."""
    create_endpoint()
    job = JobFactory.create(completed=True)
    insert_event(job, at=timezone.now() - timedelta(minutes=61))
    assert list_messages() == []
    insert_event(job, at=timezone.now() - timedelta(minutes=59))
    assert [event for event, _ in list_messages()] == ["job.completed"]


def test_an_event_has_one_message_at_most() -> None:
    """The restore of one table deletes and inserts it again."""
    create_endpoint()
    job = JobFactory.create(completed=True)
    for _ in range(2):
        insert_event(job, id=4711)
        delete_kept_rows(JobEvent.objects.filter(pk=4711))
    assert len(list_messages()) == 1
    assert WebhookMessage.objects.get().event_id == 4711


def test_an_event_of_no_job_makes_no_message() -> None:
    create_endpoint()
    insert_event(Job(pk=uuid4()))
    assert list_messages() == []


def test_an_endpoint_deleted_by_raw_sql_leaves_no_subscription() -> None:
    endpoint = create_endpoint()
    assert WebhookSubscription.objects.filter(endpoint=endpoint).count() == len(events.EVENTS)
    execute("DELETE FROM jobscheduler_webhookendpoint WHERE id = %(id)s", {"id": endpoint.pk})
    assert not WebhookSubscription.objects.exists()


@pytest.mark.pg_only
def test_a_role_with_rights_on_events_alone_can_insert_them() -> None:
    create_endpoint("https://example.org/", "job.completed")
    job = JobFactory.create(completed=True)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE ROLE jobscheduler_test_writer")
        cursor.execute("GRANT INSERT ON jobscheduler_jobevent TO jobscheduler_test_writer")
        cursor.execute(
            "GRANT UPDATE (status, finished_at), SELECT ON jobscheduler_jobgroup TO jobscheduler_test_writer"
        )
        cursor.execute("SET LOCAL ROLE jobscheduler_test_writer")
        insert_event(job)
        cursor.execute("UPDATE jobscheduler_jobgroup SET status = 'COMPLETED', finished_at = now()")
        cursor.execute("RESET ROLE")
        assert [event for event, _ in list_messages()] == ["job.completed"]
        transaction.set_rollback(True)


@pytest.mark.pg_only
def test_an_event_can_be_inserted_with_an_empty_search_path() -> None:
    """`pg_restore` works that way."""
    create_endpoint("https://example.org/", "job.completed", "group.finished")
    job, group = JobFactory.create(completed=True), groups.create([{"job_type": TYPE}])
    Job.objects.filter(group=group).update(status="CANCELLED", gate=0)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT current_schema()")
        schema = cursor.fetchone()[0]
        cursor.execute("SET LOCAL search_path = ''")
        cursor.execute(
            f"INSERT INTO {schema}.jobscheduler_jobevent"
            " (job_id, at, kind, from_status, to_status, reason, actor_kind, actor_name)"
            " VALUES (%s, now(), 'COMPLETED', '', 'COMPLETED', '', 'cli', '')",
            [job.pk],
        )
        cursor.execute(f"UPDATE {schema}.jobscheduler_jobgroup SET status = 'CANCELLED', finished_at = now()")
        cursor.execute(f"SET LOCAL search_path = {schema}")
    assert [event for event, _ in list_messages()] == ["job.completed", "group.finished"]


# ---------------------------------------------------------------------- committed transitions only


def _transitions() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Return the event and a call for each way of making a transition."""
    return {
        "enqueue": ("job.queued", lambda: jobs.enqueue(TYPE)),
        "enqueue with a key": ("job.queued", lambda: jobs.enqueue(TYPE, idempotency_key="k")),
        "enqueue many": ("job.queued", lambda: jobs.enqueue_many([{"job_type": TYPE}] * 3)),
        "claim": ("job.started", executor.claim_next),
        "cancel": ("job.cancelled", lambda: jobs.cancel(Job.objects.queued()[0].pk)),
        "finish": ("job.completed", lambda: executor.finish(Job.objects.running()[0], Completed())),
        "finish badly": ("job.failed", lambda: executor.finish(Job.objects.running()[0], Failed("e", "r", retry_in=9))),
        "insert of a retry": (
            "job.queued",
            lambda: executor.finish(Job.objects.running()[0], Failed("e", "r", retry_in=9)),
        ),
        "retry": ("job.queued", lambda: jobs.retry(Job.objects.get(status=Status.FAILED).pk)),
        "raw SQL": ("job.completed", lambda: insert_event(Job.objects.running()[0])),
    }


@pytest.fixture
def jobs_in_three_states(db: None) -> None:
    JobFactory.create()
    JobFactory.create(running=True)
    JobFactory.create(failed=True)


@pytest.mark.usefixtures("jobs_in_three_states")
@pytest.mark.parametrize("name", _transitions())
def test_every_way_of_making_a_transition_is_reported(name: str) -> None:
    event, make = _transitions()[name]
    create_endpoint("https://example.org/", event)
    make()
    assert {reported_event for reported_event, _ in list_messages()} == {event}


@pytest.mark.usefixtures("jobs_in_three_states")
@pytest.mark.parametrize("name", _transitions())
def test_a_transition_that_is_rolled_back_is_not_reported(name: str) -> None:
    create_endpoint()
    before = dump_tables()
    with transaction.atomic():
        _transitions()[name][1]()
        transaction.set_rollback(True)
    assert dump_tables() == before


@pytest.mark.usefixtures("jobs_in_three_states")
@pytest.mark.parametrize("name", _transitions())
def test_a_transition_whose_message_cannot_be_written_is_not_made(name: str) -> None:
    create_endpoint()
    with connection.cursor() as cursor:
        cursor.execute(REJECT_MESSAGES[connection.vendor])
    before = dump_tables()
    with pytest.raises(DatabaseError), transaction.atomic():
        _transitions()[name][1]()
    assert dump_tables() == before


REJECT_MESSAGES = {
    "postgresql": "ALTER TABLE jobscheduler_webhookmessage ADD CONSTRAINT full_up CHECK (false) NOT VALID",
    "sqlite": """CREATE TRIGGER full_up BEFORE INSERT ON jobscheduler_webhookmessage
                 BEGIN SELECT RAISE(ABORT, 'full up'); END""",
}


def test_an_idempotent_replay_is_not_reported_again() -> None:
    create_endpoint("https://example.org/", "job.queued")
    for _ in range(3):
        job = jobs.enqueue(TYPE, idempotency_key="once")
    assert list_reported_events(job) == ["job.queued"]


def test_a_replayed_finish_is_not_reported_again() -> None:
    create_endpoint("https://example.org/", "job.completed")
    job = executor.claim(enqueue_job())
    for _ in range(3):
        executor.finish(job, Completed())
    assert list_reported_events(job) == ["job.completed"]


def test_an_expired_lease_is_reported_as_a_failure() -> None:
    create_endpoint("https://example.org/", "job.failed")
    job = JobFactory.create(running=True)
    with transaction.atomic():
        finish.expire([job], cause=None, error="lease expired", describe=lambda _: {}, retry_in=lambda _: None)  # type: ignore[arg-type]
    assert list_reported_events(job) == ["job.failed"]


# ---------------------------------------------------------------------- concurrent changes of endpoints


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
def test_no_transition_after_an_endpoints_commit_is_missed() -> None:
    """Submit jobs in many threads while endpoints are created and disabled."""
    stop = threading.Event()
    expected: set[Any] = set()

    def submit() -> None:
        while not stop.is_set():
            jobs.enqueue(TYPE)
        connection.close()

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            endpoint = create_endpoint("https://example.org/", "job.queued")
            since = _read_database_time()
            _await_jobs(10)
            inserted = JobEvent.objects.filter(kind="SUBMITTED", at__gt=since)
            expected.update(inserted.values_list("job_id", flat=True))
            services.update(endpoint.pk, {"enabled": False})
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sorted(expected - {job_id for _event, job_id in list_messages()}) == []
    fan_out_all()
    assert expected <= {delivery.job_id for delivery in list_deliveries()}
    assert WebhookEndpoint.objects.count() == 15


def _read_database_time() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def _await_jobs(count: int) -> None:
    total = Job.objects.count() + count
    wait_until(lambda: Job.objects.count() >= total)
