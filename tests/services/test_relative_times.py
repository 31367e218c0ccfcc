"""`not_before` and `deadline_at` may be delays; they count from the submission, by the clock of the database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from jobs import clock
from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.services import jobs as job_services
from tests.sample_app.jobs import noop
from tests.support.commands import call

pytestmark = pytest.mark.django_db
TEN_MINUTES = timedelta(minutes=10)


def assert_from_now(moment: datetime | None, delay: timedelta, before: datetime) -> None:
    assert moment is not None
    assert before + delay <= moment <= clock.now() + delay


@pytest.mark.parametrize("delay", [TEN_MINUTES, "+10m", "+600s", "+5m300s"])
def test_a_delay_counts_from_the_submission(delay: Any) -> None:
    before = clock.now()
    job = noop.using(not_before=delay, deadline_at="+1h").enqueue()
    assert_from_now(job.not_before, TEN_MINUTES, before)
    assert_from_now(job.deadline_at, timedelta(hours=1), before)


def test_a_bound_handler_counts_from_each_submission() -> None:
    later = noop.using(not_before=TEN_MINUTES)
    first, second = later.enqueue(), later.enqueue()
    assert first.not_before is not None
    assert second.not_before is not None
    assert first.not_before < second.not_before


def test_both_delays_of_a_job_count_from_the_same_moment() -> None:
    job = noop.using(not_before="+1m", deadline_at="+2m").enqueue()
    assert job.deadline_at is not None
    assert job.not_before is not None
    assert job.deadline_at - job.not_before == timedelta(minutes=1)


def test_the_same_key_and_delay_return_the_job_of_the_first_submission() -> None:
    """Although the time that they mean has moved on."""
    first = noop.using(not_before="+10m", idempotency_key="k").enqueue()
    again = noop.using(not_before="+10m", idempotency_key="k").enqueue()
    assert (again.pk, again.not_before) == (first.pk, first.not_before)


def test_an_edit_counts_from_the_edit() -> None:
    job = noop.using(not_before="+1d").enqueue()
    before = clock.now()
    assert_from_now(job_services.update(job.pk, {"not_before": "+10m"}).not_before, TEN_MINUTES, before)


def test_the_command_takes_delays() -> None:
    before = clock.now()
    assert call("enqueue", "sample.noop", "--at=+10m", "--deadline=+1h30m").code == 0
    job = Job.objects.get()
    assert_from_now(job.not_before, TEN_MINUTES, before)
    assert_from_now(job.deadline_at, timedelta(minutes=90), before)


@pytest.mark.parametrize("field", ["not_before", "deadline_at"])
@pytest.mark.parametrize(
    "delay",
    [
        *("+", "+soon", "+10", "+0s", "+0.0s", "-10m", "10m", "+10 m", "+999999999w", "+" + "1s" * 100),
        *(timedelta(0), timedelta(seconds=-1), timedelta.max, 600),
    ],
)
def test_other_delays_are_refused_by_name(field: str, delay: Any) -> None:
    with pytest.raises(InvalidInput, match=field):
        noop.using(**{field: delay}).enqueue()
    assert not Job.objects.exists()


def test_the_refusal_of_a_number_names_both_forms() -> None:
    with pytest.raises(InvalidInput, match="a time such as 2030-01-31T12:00:00Z, or a delay such as \\+10m"):
        noop.using(not_before=600).enqueue()


def test_a_deadline_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be after not_before"):
        noop.using(not_before="+2m", deadline_at="+1m").enqueue()
