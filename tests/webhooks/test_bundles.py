"""Jobs that move at once cost the outbox one row an event; whoever looks sees what is owed about each of them, and
receivers are told the same as if each had moved alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from jobs import services as jobs
from jobs.engine import ending
from jobs.engine.claim import Claim, Claimer, Serves
from jobs.engine.ending import End
from jobs.engine.retention import Pruning
from jobs.models import ConcurrencyLimit, Job
from jobs.outcomes import Completed, Failed
from tests.admin.pages import page_of
from tests.admin.people import logged_in
from tests.api.calling import Api
from tests.executor import WORKER
from tests.webhooks.scenes import TYPE, deliveries, endpoint, handed_out, owed
from webhooks import bundles, counts, fanout
from webhooks.interest import listening
from webhooks.models import WebhookBundle, WebhookMessage

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_limits(db: None) -> None:
    ConcurrencyLimit.objects.all().delete()


def claimed(number: int) -> list[Claim]:
    jobs.enqueue_many([{"job_type": TYPE, "params": {"n": n}, "tags": [f"t{n}"]} for n in range(number)])
    return Claimer("worker-1", Serves(types=(TYPE,))).claim(range(number), lease_sec=30)


def finished(claims: Sequence[Claim], *outcomes: Completed | Failed) -> None:
    said = outcomes or (Completed({"result": 1}),) * len(claims)
    ends = [End(each.id, each.lease_token, outcome) for each, outcome in zip(claims, said, strict=True)]
    ending.finish(ends, actor=WORKER)


def shown(job: UUID) -> dict[str, Any]:
    found: dict[str, Any] = Api().get(f"/jobs/{job}").json()
    found.pop("webhooks")  # how its deliveries stand has changed by then
    return found


def told() -> dict[tuple[str, UUID | None], dict[str, Any]]:
    """What is said of each job at each event."""
    handed_out()
    found = {}
    for message in WebhookMessage.objects.all():
        document = json.loads(bytes(message.body or b""))
        document["data"].pop("webhooks")
        found[message.event, message.job_id] = document["data"]
    return found


def test_one_row_an_event_however_many_jobs() -> None:
    endpoint("https://example.org/", "job.started", "job.completed")
    claims = claimed(8)
    finished(claims)
    assert Counter(WebhookBundle.objects.values_list("event", flat=True)) == {"job.started": 1, "job.completed": 1}
    assert WebhookMessage.objects.count() == 0
    ids = {each.id for each in claims}
    assert set(owed()) == {(event, job) for event in ("job.started", "job.completed") for job in ids}
    assert not WebhookBundle.objects.exists()


def test_receivers_are_told_each_job_as_it_was() -> None:
    endpoint("https://example.org/", "job.started", "job.completed")
    claims = claimed(4)
    started = {each.id: shown(each.id) for each in claims}
    Job.objects.update(priority=77, progress=0.5)  # what its row says later is no news of its start
    finished(claims)
    found = told()
    for each in claims:
        assert found["job.started", each.id] == started[each.id]
        assert found["job.completed", each.id] == shown(each.id)


def test_failures_name_their_retries_and_those_without_none() -> None:
    endpoint("https://example.org/", "job.failed")
    claims = claimed(3)
    finished(claims, *(Failed("e", "r", retry_in=retry_in) for retry_in in (5, None, 9)))
    retry_of = dict(Job.objects.exclude(retry_of=None).values_list("retry_of_id", "pk"))
    found = told()
    assert [found["job.failed", each.id]["retried_by"] for each in claims] == [
        str(retry_of[claims[0].id]),
        None,
        str(retry_of[claims[2].id]),
    ]


def test_outcomes_that_differ_are_told_apart() -> None:
    endpoint("https://example.org/", "job.failed", "job.completed")
    claims = claimed(4)
    finished(claims, Completed(), Failed("e", "r"), Completed(), Failed("e", "r"))
    assert [sorted(name for name, job in owed() if job == each.id) for each in claims] == [
        ["job.completed"],
        ["job.failed"],
    ] * 2


def test_what_is_owed_is_counted_while_it_is_packed() -> None:
    for _ in range(2):
        endpoint("https://example.org/", "job.started", "job.completed")
    claims = claimed(3)
    finished(claims)
    packed = counts.of_jobs([each.id for each in claims])
    assert packed == {each.id: {"pending": 4, "delivered": 0, "failed": 0} for each in claims}
    page = logged_in(User.objects.create_superuser("boss")).get(page_of(Job.objects.get(pk=claims[0].id)))
    assert "4 more are about to be handed out" in page.content.decode()
    handed_out()
    assert counts.of_jobs([each.id for each in claims]) == packed
    assert bundles.owed([each.id for each in claims]) == {}


def test_a_job_is_not_counted_for_the_company_it_was_in() -> None:
    """Only what is owed about the job itself, whoever moved at the same moment."""
    endpoint("https://example.org/", "job.failed")
    claims = claimed(4)
    finished(claims, Completed(), Failed("e", "r"), Completed(), Failed("e", "r"))
    assert set(counts.of_jobs([each.id for each in claims])) == {claims[1].id, claims[3].id}


def test_a_job_that_is_told_of_in_a_bundle_is_not_pruned() -> None:
    endpoint("https://example.org/", "job.completed")
    claims = claimed(3)
    finished(claims)
    Pruning(timedelta(days=-1)).go()
    assert Job.objects.count() == 3


def test_a_bundle_of_more_than_a_batch_is_handed_out_whole_and_once() -> None:
    for _ in range(20):
        endpoint("https://example.org/", "job.completed")
    claims = claimed(50)
    finished(claims)
    assert handed_out() == 50
    assert Counter(each.job_id for each in deliveries()) == {each.id: 20 for each in claims}


def test_many_small_bundles_are_handed_out_together() -> None:
    """Jobs that moved alone, one after the other, are not handed out one by one."""
    endpoint("https://example.org/", "job.completed")
    listening.look()  # the first to learn of an endpoint tells it by messages
    for _ in range(bundles.AT_ONCE + 5):
        finished(claimed(2))
    assert WebhookBundle.objects.count() == bundles.AT_ONCE + 5
    (lane,) = fanout._owed_to()
    assert fanout.hand_out(lane) == 2 * (bundles.AT_ONCE + 5)
    assert not WebhookBundle.objects.exists()


def test_no_more_is_unpacked_than_is_needed() -> None:
    endpoint("https://example.org/", "job.completed")
    listening.look()  # the first to learn of an endpoint tells it by messages
    for _ in range(5):
        finished(claimed(2))
    (lane,) = fanout._owed_to()
    with transaction.atomic():
        assert bundles.unpack(lane, 3) == 4
    assert (WebhookBundle.objects.count(), WebhookMessage.objects.count()) == (3, 4)


def test_moves_that_are_taken_back_leave_no_bundle() -> None:
    endpoint()
    with transaction.atomic():
        finished(claimed(4))
        assert WebhookBundle.objects.exists()
        transaction.set_rollback(True)
    assert not WebhookBundle.objects.exists()
