"""A fire whose job has a unique key that is taken leaves its fire and a SKIPPED job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from jobs import job
from jobs.models import Job
from jobs.registry import registry
from jobs.states import Status
from schedules import services
from schedules.firing import fire_due
from schedules.models import Schedule, ScheduleFire
from tests.support import executor
from tests.support.admin_pages import get_page_url, read_messages, run_action
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db


@pytest.fixture
def schedule() -> Iterator[Schedule]:
    before = registry._handlers
    job("tests.synced", unique_key="sync", unique_until="end")(lambda: None)
    yield services.create({"name": "sync", "job_type": "tests.synced", "every_sec": 700_000, "overlap": "allow"})
    registry._handlers = before


def fire(schedule: Schedule) -> None:
    schedule.refresh_from_db()
    assert schedule.next_fire_at is not None
    assert fire_due(schedule.next_fire_at) == 1


def test_a_fire_that_conflicts_is_kept_with_a_skipped_job(schedule: Schedule) -> None:
    fire(schedule)
    first = Job.objects.get()
    fire(schedule)

    second = Job.objects.exclude(pk=first.pk).get()
    assert (first.status, second.status) == (Status.QUEUED, Status.SKIPPED)
    assert second.status_reason == "another job has the unique key sync"
    assert (second.unique_key, second.schedule_id) == (None, schedule.pk)
    notes = ScheduleFire.objects.order_by("fire_time").values_list("job_id", "note")
    assert list(notes) == [(first.pk, ""), (second.pk, second.status_reason)]

    executor.complete(executor.claim(first))
    fire(schedule)
    assert Job.objects.filter(status=Status.QUEUED, unique_key="sync").count() == 1


def test_a_trigger_says_that_another_job_has_the_key(schedule: Schedule, boss: Client) -> None:
    api = ApiClient("operate", "read")
    first, second = (api.post(f"/schedules/{schedule.pk}/trigger") for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"] == str(Job.objects.get().pk)
    assert services.submit_trigger(schedule.pk).created is False
    button = get_page_url(schedule).replace("/change/", "/verb/trigger/")
    assert "No new job; this one has the key:" in read_messages(boss.post(button))
    other = services.create({"name": "other", "job_type": "tests.synced", "every_sec": 700_000})
    messages = read_messages(run_action(boss, "trigger", [schedule, other]))
    assert "2 made no new job: their unique keys are taken." in messages
    assert Job.objects.count() == 1


def test_a_fire_that_is_skipped_for_its_overlap_does_not_take_the_key(schedule: Schedule) -> None:
    changes: dict[str, Any] = {"overlap": "skip"}
    services.update(schedule.pk, changes)
    fire(schedule)
    fire(schedule)
    statuses = Job.objects.order_by("created_at").values_list("status", "unique_key")
    assert list(statuses) == [(Status.QUEUED, "sync"), (Status.SKIPPED, None)]
