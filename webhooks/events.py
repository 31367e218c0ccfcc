"""The events that endpoints can subscribe to, and the transitions of jobs and groups that they report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from jobs.errors import InvalidInput
from jobs.states import EventKind, Status

QUEUED, STARTED, PAUSED, RESUMED = "job.queued", "job.started", "job.paused", "job.resumed"
COMPLETED, FAILED, SKIPPED, CANCELLED = "job.completed", "job.failed", "job.skipped", "job.cancelled"
GROUP_FINISHED = "group.finished"
TEST = "webhook.test"

EVENTS = (QUEUED, STARTED, COMPLETED, FAILED, SKIPPED, CANCELLED, PAUSED, RESUMED, GROUP_FINISHED)
PATTERNS = (*EVENTS, "job.*", "*")


class EventKey(NamedTuple):
    """The kind and the new status of a row of the job event table."""

    kind: str
    to_status: Status


EVENT_OF: dict[EventKey, str] = {
    EventKey(EventKind.SUBMITTED, Status.QUEUED): QUEUED,
    EventKey(EventKind.RELEASED, Status.QUEUED): QUEUED,
    EventKey(EventKind.HANDED_BACK, Status.QUEUED): QUEUED,
    EventKey(EventKind.SNOOZED, Status.QUEUED): QUEUED,
    EventKey(EventKind.RUNNING, Status.RUNNING): STARTED,
    EventKey(EventKind.COMPLETED, Status.COMPLETED): COMPLETED,
    EventKey(EventKind.FAILED, Status.FAILED): FAILED,
    EventKey(EventKind.SKIPPED, Status.SKIPPED): SKIPPED,
    EventKey(EventKind.CANCELLED, Status.CANCELLED): CANCELLED,
    EventKey(EventKind.PAUSED, Status.PAUSED): PAUSED,
    EventKey(EventKind.RESUMED, Status.QUEUED): RESUMED,
}
STATUS_OF = {event: transition.to_status for transition, event in EVENT_OF.items()}


def expand_patterns(patterns: Iterable[str]) -> set[str]:
    """Return the events that patterns such as `job.*` match."""
    prefixes = tuple(pattern.removesuffix("*") for pattern in patterns if pattern.endswith("*"))
    return {event for event in EVENTS if event in patterns or event.startswith(prefixes)}


def parse_events(value: Any, field: str = "events") -> list[str]:
    """Return a list of at least one event or pattern, without duplicates; raise InvalidInput."""
    if not isinstance(value, list | tuple):
        raise InvalidInput(field, _("must be a list"), "list_type")
    if not value:
        raise InvalidInput(field, _("must name at least one event, or “*” for all"), "too_short")
    for index, pattern in enumerate(value):
        if not isinstance(pattern, str) or pattern not in PATTERNS:
            raise InvalidInput([field, index], _("must be one of %s") % ", ".join(PATTERNS), "enum")
    return list(dict.fromkeys(value))
