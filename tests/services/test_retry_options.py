"""When a job is retried: options of handler, template and submission, and what a handler that raises Retry says."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings

from jobs import Retry, Snooze, job
from jobs.engine.executors.run import Context, decide_retry, run
from jobs.engine.maintenance.recovery import decide_retry_delay
from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.outcomes import Failed
from jobs.policies.retry import ExponentialBackoff, RetryFacts
from jobs.registry import Handler, registry
from jobs.services import groups, templates
from jobs.services import jobs as job_services
from jobs.states import Cause
from jobs.testing import drain
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db
seen: list[RetryFacts] = []


class RecordingPolicy:
    def decide(self, facts: RetryFacts) -> float | None:
        seen.append(facts)
        return 5.0


@pytest.fixture
def patient() -> Iterator[Handler[..., Any]]:
    """Return a handler with retry options of its own, that fails as its params say."""
    before = registry._handlers

    @job(
        "tests.patient", retry_delay=60, retry_backoff=3, retry_max_delay=600, retry_jitter=0, retry_on=ConnectionError
    )
    def patient(after: float | None = None) -> None:
        raise ConnectionError("no answer") if after is None else Retry("come later", after=after)

    yield patient
    registry._handlers = before


def delays(job: Job) -> list[float | None]:
    return [decide_delay(job, attempt) for attempt in range(1, 5)]


def decide_delay(job: Job, attempt: int) -> float | None:
    job.attempt = attempt
    return decide_retry_delay(job, Cause.LEASE_EXPIRED)


def test_a_handlers_options_are_copied_into_the_job(patient: Handler[..., Any]) -> None:
    made = patient.enqueue()
    assert made.retry_policy == {"base_sec": 60, "backoff": 3, "max_sec": 600, "jitter": 0}
    assert delays(Job.objects.get(pk=made.pk)) == [60, 180, 540, None]


def test_a_retry_after_a_crash_needs_no_handler(patient: Handler[..., Any]) -> None:
    made = Job.objects.get(pk=patient.enqueue().pk)
    registry._handlers = {name: found for name, found in registry._handlers.items() if name != patient.name}
    assert delays(made) == [60, 180, 540, None]


def test_a_submission_wins_over_a_template_and_a_template_over_the_handler(patient: Handler[..., Any]) -> None:
    pace = {"base_sec": 7, "backoff": 1}
    templates.create({"name": "quick", "job_type": patient.name, "retry_policy": pace})
    made = job_services.enqueue(template="quick", retry_delay=8, retry_policy={"max_attempts": 1})
    assert made.retry_policy == {"base_sec": 8, "backoff": 1, "max_sec": 600, "jitter": 0, "max_attempts": 1}
    assert made.max_retries == 1
    assert job_services.enqueue(template="quick").retry_policy["base_sec"] == 7


def test_options_are_given_by_using_in_groups_and_in_bulk(patient: Handler[..., Any]) -> None:
    bound = patient.using(retry_policy={"jitter": 0.5}).using(retry_delay=1).using(retry_backoff=2.0)
    expected = {"base_sec": 1, "backoff": 2, "max_sec": 600, "jitter": 0.5}
    assert bound.enqueue().retry_policy == expected
    group = groups.group([bound.s()]).enqueue()
    assert groups.get_latest_attempts(group.pk).get().retry_policy == expected
    (job_id,) = job_services.enqueue_many([{"job_type": patient.name, "retry_policy": {"base_sec": 2}}])
    assert Job.objects.get(pk=job_id).retry_policy["base_sec"] == 2


def test_max_retries_wins_over_max_attempts(patient: Handler[..., Any]) -> None:
    assert patient.using(max_retries=5, retry_policy={"max_attempts": 1}).enqueue().max_retries == 5


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"retry_delay": -1}, ["retry_delay"]),
        ({"retry_delay": "10"}, ["retry_delay"]),
        ({"retry_backoff": 0.5}, ["retry_backoff"]),
        ({"retry_backoff": float("nan")}, ["retry_backoff"]),
        ({"retry_max_delay": -1}, ["retry_max_delay"]),
        ({"retry_jitter": 2}, ["retry_jitter"]),
        ({"retry_policy": []}, ["retry_policy"]),
        ({"retry_policy": {"pause": 1}}, ["retry_policy", "pause"]),
        ({"retry_policy": {"backoff": 0}}, ["retry_policy", "backoff"]),
        ({"retry_policy": {"base_sec": True}}, ["retry_policy", "base_sec"]),
    ],
)
def test_a_wrong_option_is_refused_by_name(patient: Handler[..., Any], fields: Any, loc: list[str]) -> None:
    for submit in (lambda: patient.using(**fields).enqueue(), lambda: job_services.enqueue(patient.name, **fields)):
        with pytest.raises(InvalidInput) as raised:
            submit()
        assert raised.value.errors[0]["loc"] == loc
    assert not Job.objects.exists()


def test_a_wrong_option_of_a_handler_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="retry_backoff"):
        job("tests.wrong", retry_backoff=0)(lambda: None)


def test_a_handler_that_raises_retry_names_the_delay(patient: Handler[..., Any]) -> None:
    made = patient.enqueue(after=1234.5)
    drain()
    retry = Job.objects.get(retry_of=made)
    assert retry.not_before is not None
    assert timedelta(0) <= retry.not_before - retry.created_at - timedelta(seconds=1234.5) < timedelta(seconds=1)
    made.refresh_from_db()
    assert (made.status, made.status_reason) == ("FAILED", "Retry: come later")


def test_retry_does_not_add_attempts(patient: Handler[..., Any]) -> None:
    made = patient.using(max_retries=0).enqueue(after=1)
    drain()
    assert not Job.objects.filter(retry_of=made).exists()


def test_retry_at_a_time() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=100)
    job = JobFactory.build(job_type="sample.noop", max_retries=3)
    delay = decide_retry(job, cause=Cause.ERROR, error=Retry(at=soon))
    assert delay is not None
    assert 95 < delay <= 100
    assert decide_retry(job, cause=Cause.ERROR, error=Retry(at=soon - timedelta(days=1))) == 0


class OwnRetry(Retry):
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class OwnSnooze(Snooze):
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (OwnRetry(), 60),  # that of the policy
        (OwnRetry(after=7), 7),
        (OwnRetry(at="soon"), None),
        (OwnSnooze(), 60),
        (OwnSnooze(delay_sec="7"), 60),
    ],
    ids=repr,
)
def test_a_subclass_that_names_no_delay_is_a_failure_as_any_other(error: Exception, delay: float | None) -> None:
    """An exception here would leave the job running, and its slot taken, for as long as the worker lives."""
    raising = JobFactory.build(job_type="tests.raising", max_retries=3, retry_policy={"base_sec": 60, "jitter": 0})
    before = registry._handlers

    @job("tests.raising")
    def raise_error() -> None:
        raise error

    try:
        outcome = run(raising, Context(job_id=None, params={}))
    finally:
        registry._handlers = before
    assert isinstance(outcome, Failed)
    assert (outcome.retry_in, type(error).__name__ in outcome.error) == (delay, True)


@override_settings(JOBSCHEDULER={"RETRY_POLICY": f"{__name__}.RecordingPolicy"})
def test_a_policy_gets_the_job_type_and_the_class_of_the_error(patient: Handler[..., Any]) -> None:
    seen.clear()
    patient.enqueue()
    drain()
    assert [(facts.job_type, facts.error_class, facts.backoff) for facts in seen] == [
        ("tests.patient", "builtins.ConnectionError", 3)
    ]
    made = patient.enqueue(after=77)
    drain()
    retry = Job.objects.get(retry_of=made)
    assert retry.not_before is not None
    assert round((retry.not_before - retry.created_at).total_seconds()) == 77  # what the handler says stands


@pytest.mark.parametrize(
    "fields", [{}, {"after": 1, "at": datetime.now(UTC)}, {"after": "1"}, {"at": datetime(2030, 1, 1)}]
)
def test_retry_needs_one_time(fields: Any) -> None:
    with pytest.raises(TypeError, match="Retry"):
        Retry(**fields)


@pytest.mark.parametrize("error", [Retry("x", after=3), Retry(at=datetime(2030, 1, 1, tzinfo=UTC)), Snooze(4, "y")])
def test_both_exceptions_can_be_pickled(error: Any) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize(("attempt", "delay"), [(1, 10), (2, 10), (70, 10)])
def test_a_backoff_of_one_is_a_steady_delay(attempt: int, delay: float) -> None:
    facts = RetryFacts(attempt=attempt, max_retries=100, backoff=1)
    assert ExponentialBackoff().decide(facts) == delay
