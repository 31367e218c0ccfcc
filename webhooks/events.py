"""The events that an endpoint can subscribe to, and which moves of jobs and groups they tell of."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from django.utils.translation import gettext as _

from jobs.errors import InvalidInput
from jobs.hooks import Event, GroupFinished
from jobs.states import EventKind, Status

QUEUED, STARTED, PAUSED, RESUMED = "job.queued", "job.started", "job.paused", "job.resumed"
COMPLETED, FAILED, SKIPPED, CANCELLED = "job.completed", "job.failed", "job.skipped", "job.cancelled"
GROUP_FINISHED = "group.finished"
TEST = "webhook.test"

ENDS = (COMPLETED, FAILED, SKIPPED, CANCELLED)
EVENTS = (QUEUED, STARTED, *ENDS, PAUSED, RESUMED, GROUP_FINISHED)
FILTERS = (*EVENTS, "job.*", "*")

_BY_KIND = {
    EventKind.RUNNING: STARTED,
    EventKind.COMPLETED: COMPLETED,
    EventKind.FAILED: FAILED,
    EventKind.SKIPPED: SKIPPED,
    EventKind.CANCELLED: CANCELLED,
    EventKind.PAUSED: PAUSED,
    EventKind.RESUMED: RESUMED,
}
_INTO_THE_QUEUE = (EventKind.SUBMITTED, EventKind.RELEASED, EventKind.HANDED_BACK)


def name_of(event: Event) -> str | None:
    """What a move is told as; None for moves that nobody outside is told of."""
    if isinstance(event, GroupFinished):
        return GROUP_FINISHED
    if event.kind in _INTO_THE_QUEUE:
        return QUEUED if event.target == Status.QUEUED else None
    return _BY_KIND.get(event.kind)


@cache
def names_of(*kinds: EventKind) -> frozenset[str]:
    """What moves of these kinds may be told as."""
    told = {QUEUED if kind in _INTO_THE_QUEUE else _BY_KIND.get(kind) for kind in kinds}
    return frozenset(name for name in told if name is not None)


def filters_for(names: Iterable[str]) -> list[str]:
    """The words in an endpoint's `events` that ask for any of these."""
    return sorted({word for name in names for word in (name, f"{name.partition('.')[0]}.*", "*")})


def wants(said: Iterable[str], name: str) -> bool:
    return not set(filters_for([name])).isdisjoint(said)


def parse(value: Any, field: str = "events") -> list[str]:
    """A list of at least one event or pattern, each once."""
    if not isinstance(value, list | tuple):
        raise InvalidInput(field, _("must be a list"), "list_type")
    if not value:
        raise InvalidInput(field, _("must name at least one event, or “*” for all"), "too_short")
    for index, word in enumerate(value):
        if not isinstance(word, str) or word not in FILTERS:
            raise InvalidInput([field, index], _("must be one of %s") % ", ".join(FILTERS), "enum")
    return list(dict.fromkeys(value))
