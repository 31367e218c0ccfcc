"""Messages of many jobs in one row, until somebody is about to be told.

A worker moves dozens of jobs with one statement, and a message for each would cost more than the moves themselves. So
that statement writes one bundle for each event, and whoever hands messages out unpacks it first. Receivers that do not
answer are in no hurry, so what they are owed stays packed.

A bundle is found by its jobs through time: it is of the very microsecond of the events in their histories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from uuid import UUID

from jobs import db
from jobs.ids import uuid7s_of
from jobs.models import JobEvent
from webhooks import audiences, snapshots
from webhooks.models import WebhookBundle, WebhookMessage

NOBODY = UUID(int=0)
AT_ONCE = 20  # bundles that are looked at together; of jobs that moved alone, each has one


def unpack(lane: UUID, least: int = 1) -> int:
    """The oldest bundles of an audience that nobody else has in hand, in the caller's transaction, until they make at
    least so many messages. How many that were."""
    rows, made = WebhookBundle.objects.filter(audience_id=lane).order_by("pk"), 0
    while made < least and (some := list(rows.select_for_update(skip_locked=True)[:AT_ONCE])):
        opened, messages = [], list[WebhookMessage]()
        for bundle in some:
            if made + len(messages) < least:
                messages += _messages(bundle)
                opened.append(bundle.pk)
        WebhookMessage.objects.bulk_create(messages)
        rows.filter(pk__in=opened).order_by()._raw_delete(db.alias())
        made += len(messages)
    return made


def owed(jobs: Collection[UUID]) -> dict[UUID, int]:
    """How many deliveries bundles owe about these jobs; only of those that they tell of."""
    when = JobEvent.objects.filter(job_id__in=jobs).order_by().values("at")
    bundles = WebhookBundle.objects.filter(at__in=when).order_by()
    asked, found = frozenset(jobs), dict[UUID, int]()
    for told, endpoints in bundles.values_list("jobs", "audience__endpoints"):
        for job in asked.intersection(audiences.unpack(told)):
            found[job] = found.get(job, 0) + len(audiences.unpack(endpoints))
    return found


def pack(ids: Iterable[UUID | None]) -> bytes:
    return b"".join(NOBODY.bytes if each is None else each.bytes for each in ids)


def _messages(bundle: WebhookBundle) -> Iterator[WebhookMessage]:
    jobs = audiences.unpack(bundle.jobs)
    retries = [NOBODY] * len(jobs) if bundle.retried_by is None else audiences.unpack(bundle.retried_by)
    taken = [None] * len(jobs) if bundle.snapshots is None else snapshots.unpacked(bundle.snapshots)
    for key, job, retried_by, snapshot in zip(uuid7s_of(bundle.at, len(jobs)), jobs, retries, taken, strict=True):
        yield WebhookMessage(
            id=key,
            tenant=bundle.tenant,
            event=bundle.event,
            job_id=job,
            retried_by=None if retried_by == NOBODY else retried_by,
            at=bundle.at,
            audience_id=bundle.audience_id,
            snapshot=snapshot,
        )
