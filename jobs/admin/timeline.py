"""A job's way so far and as it is planned: what happened, by whom, and how long each step took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs.admin.marks import ICONS
from jobs.admin.showing import first_line
from jobs.engine.lifecycle import PAUSED_BY_DEFAULT
from jobs.explain import Explanation
from jobs.models import Job, JobEvent
from jobs.states import EventKind, Status

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

WORDS: dict[str, StrPromise] = {
    EventKind.SUBMITTED: pgettext_lazy("event", "Submitted"),
    EventKind.HELD: pgettext_lazy("event", "Held back"),
    EventKind.RELEASED: pgettext_lazy("event", "Released"),
    EventKind.ADMITTED: pgettext_lazy("event", "Admitted"),
    EventKind.DENIED: pgettext_lazy("event", "Admission denied"),
    EventKind.DISPATCHING: pgettext_lazy("event", "Offered to a remote worker"),
    EventKind.WITHDRAWN: pgettext_lazy("event", "Offer withdrawn"),
    EventKind.RUNNING: pgettext_lazy("event", "Running"),
    EventKind.CANCEL_REQUESTED: pgettext_lazy("event", "Asked to cancel"),
    EventKind.PAUSE_REQUESTED: pgettext_lazy("event", "Asked to pause"),
    EventKind.PAUSED: pgettext_lazy("event", "Paused"),
    EventKind.RESUMED: pgettext_lazy("event", "Resumed"),
    EventKind.HANDED_BACK: pgettext_lazy("event", "Handed back"),
    EventKind.COMPLETED: pgettext_lazy("event", "Completed"),
    EventKind.FAILED: pgettext_lazy("event", "Failed"),
    EventKind.SKIPPED: pgettext_lazy("event", "Skipped"),
    EventKind.CANCELLED: pgettext_lazy("event", "Cancelled"),
    EventKind.RETRY_CREATED: pgettext_lazy("event", "Followed by a retry"),
    EventKind.RESOLVED: pgettext_lazy("event", "Resolved"),
    EventKind.MOVED: pgettext_lazy("event", "Moved in the queue"),
    EventKind.UPDATED: pgettext_lazy("event", "Changed"),
    EventKind.AGED: pgettext_lazy("event", "Raised, since it waited long"),
}


@dataclass
class Step:
    """`lasted`: until the next step, or until now; None where nothing comes after it."""

    word: StrPromise | str
    at: datetime | None
    icon: str = "·"
    actor: str = ""
    reason: str = ""
    lasted: timedelta | None = None
    is_future: bool = False


def steps(job: Job, events: Sequence[JobEvent], outlook: Explanation | None, now: datetime) -> list[Step]:
    """`events` oldest first."""
    taken = [_step(each) for each in events]
    for step, later in pairwise(taken):
        step.lasted = _between(step.at, later.at)
    if taken and not job.is_terminal:
        taken[-1].lasted = _between(taken[-1].at, now)
    return [*taken, *_ahead(job, outlook, now)]


def _step(event: JobEvent) -> Step:
    icon = ICONS[Status(event.kind)] if event.kind in set(Status) else "·"
    actor = f"{event.get_actor_kind_display()} {event.actor_name}".strip()
    return Step(WORDS.get(event.kind, event.kind), event.at, icon, actor, first_line(_reason(event), 500))


def _reason(event: JobEvent) -> str:
    """A bare pause of what waited interrupted nothing: that it is paused says it all."""
    is_bare = event.reason == PAUSED_BY_DEFAULT and event.from_status != Status.RUNNING
    return "" if is_bare else event.reason


def _between(first: datetime | None, then: datetime | None) -> timedelta | None:
    return None if first is None or then is None else max(then - first, timedelta(0))


def _ahead(job: Job, outlook: Explanation | None, now: datetime) -> Iterator[Step]:
    """What is planned, as far as it is known."""
    if job.is_terminal:
        return
    if job.not_before is not None and job.not_before > now and job.status == Status.QUEUED:
        yield Step(gettext_lazy("Due"), job.not_before, is_future=True)
    if outlook is not None and outlook.predicted_start_at is not None:
        yield Step(gettext_lazy("Running, as it looks now"), outlook.predicted_start_at, is_future=True)
    if job.deadline_at is not None and job.deadline_at > now and job.dispatched_at is None:
        yield Step(gettext_lazy("Too late to start"), job.deadline_at, is_future=True)
