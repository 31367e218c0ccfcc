"""The map of a job's life: every state, and every arrow between two of them.

Pure data, no ORM. `docs/lifecycle.md` is generated from this file; `engine.lifecycle` and
`engine.claim` are the only modules that walk the arrows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    PENDING = "PENDING"
    QUEUED = "QUEUED"
    DISPATCHING = "DISPATCHING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


MEANING = {
    Status.PENDING: "created and held back: its predecessor in a sequential group has not ended, or it was submitted with `hold`",
    Status.QUEUED: "waiting for its time, its lane, a free slot in the limits, and admission",
    Status.DISPATCHING: "reserved for a remote executor that has not started it yet",
    Status.RUNNING: "leased by exactly one executor",
    Status.PAUSED: "stopped by a person and resumable; its run stays open and its lane stays shut",
    Status.COMPLETED: "the handler returned",
    Status.FAILED: "the handler raised, ran out of time or tokens, or its executor vanished",
    Status.SKIPPED: "there was nothing to do: the handler said so, or it was too late, or a rule said so",
    Status.CANCELLED: "a person or a failed predecessor ended it",
}

TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.SKIPPED, Status.CANCELLED})
LIVE = frozenset(Status) - TERMINAL
ACTIVE = frozenset({Status.DISPATCHING, Status.RUNNING})
ENDED_WELL = frozenset({Status.COMPLETED, Status.SKIPPED})
RUN_STATUSES = (Status.RUNNING, *sorted(TERMINAL))


class StopMode(StrEnum):
    """What a person asked a running job to become."""

    CANCEL = "CANCEL"
    PAUSE = "PAUSE"


STOPPED_AS = {StopMode.CANCEL: Status.CANCELLED, StopMode.PAUSE: Status.PAUSED}


class EventKind(StrEnum):
    SUBMITTED = "SUBMITTED"
    HELD = "HELD"
    RELEASED = "RELEASED"
    ADMITTED = "ADMITTED"
    DENIED = "DENIED"
    DISPATCHING = "DISPATCHING"
    WITHDRAWN = "WITHDRAWN"
    RUNNING = "RUNNING"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"
    PAUSE_REQUESTED = "PAUSE_REQUESTED"
    PAUSED = "PAUSED"
    RESUMED = "RESUMED"
    HANDED_BACK = "HANDED_BACK"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"
    RETRY_CREATED = "RETRY_CREATED"
    RESOLVED = "RESOLVED"
    MOVED = "MOVED"
    UPDATED = "UPDATED"
    AGED = "AGED"


class Cause(StrEnum):
    """Why a job FAILED; kept in the terminal event's data."""

    ERROR = "ERROR"
    TIMEOUT = "TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    CRASH_RECOVERY = "CRASH_RECOVERY"
    TOKEN_LIMIT = "TOKEN_LIMIT"


class Who(StrEnum):
    PERSON = "a person or a program acting for one"
    EXECUTOR = "the executor that holds the lease"
    SCHEDULER = "the scheduler itself"


@dataclass(frozen=True)
class Arrow:
    """One legal move. `source` None is a job's birth."""

    verb: str
    source: Status | None
    target: Status
    event: EventKind
    by: Who
    rule: str = ""


def _arrows(
    verb: str, sources: Iterable[Status | None], target: Status, event: EventKind, by: Who, rule: str = ""
) -> tuple[Arrow, ...]:
    return tuple(Arrow(verb, source, target, event, by, rule) for source in sources)


S, E = Status, EventKind

ARROWS: tuple[Arrow, ...] = (
    *_arrows("enqueue", [None], S.QUEUED, E.SUBMITTED, Who.PERSON, "params are valid for the handler"),
    *_arrows(
        "enqueue", [None], S.PENDING, E.SUBMITTED, Who.PERSON, "`hold`, or a predecessor in its group is not done"
    ),
    *_arrows("release", [S.PENDING], S.QUEUED, E.RELEASED, Who.PERSON, "no predecessor is pending"),
    *_arrows("claim", [S.QUEUED], S.RUNNING, E.RUNNING, Who.EXECUTOR, "fresh lease token; opens or continues the run"),
    *_arrows("offer", [S.QUEUED], S.DISPATCHING, E.DISPATCHING, Who.SCHEDULER, "counts against limits and capacity"),
    *_arrows(
        "start", [S.DISPATCHING], S.RUNNING, E.RUNNING, Who.EXECUTOR, "fresh lease token; opens or continues the run"
    ),
    *_arrows(
        "withdraw", [S.DISPATCHING], S.QUEUED, E.WITHDRAWN, Who.SCHEDULER, "not started within the dispatch timeout"
    ),
    *_arrows("complete", [S.RUNNING], S.COMPLETED, E.COMPLETED, Who.EXECUTOR, "lease token matches"),
    *_arrows("skip", [S.RUNNING], S.SKIPPED, E.SKIPPED, Who.EXECUTOR, "lease token matches"),
    *_arrows("skip", [S.PENDING, S.QUEUED], S.SKIPPED, E.SKIPPED, Who.SCHEDULER, "deadline, overlap or predecessor"),
    *_arrows(
        "fail",
        [S.RUNNING],
        S.FAILED,
        E.FAILED,
        Who.EXECUTOR,
        "lease token matches; the retry policy decides on a new job",
    ),
    *_arrows(
        "expire", [S.RUNNING], S.FAILED, E.FAILED, Who.SCHEDULER, "lease and grace are over; the retry policy decides"
    ),
    *_arrows(
        "expire", [S.RUNNING], S.CANCELLED, E.CANCELLED, Who.SCHEDULER, "lease and grace are over, a cancel was asked"
    ),
    *_arrows(
        "expire",
        [S.RUNNING],
        S.PAUSED,
        E.PAUSED,
        Who.SCHEDULER,
        "lease and grace are over, a pause was asked; run stays open",
    ),
    *_arrows("cancel", [S.PENDING, S.QUEUED, S.DISPATCHING, S.PAUSED], S.CANCELLED, E.CANCELLED, Who.PERSON, "at once"),
    *_arrows("cancel", [S.RUNNING], S.RUNNING, E.CANCEL_REQUESTED, Who.PERSON, "asks; upgrades a pause"),
    *_arrows("pause", [S.QUEUED, S.DISPATCHING], S.PAUSED, E.PAUSED, Who.PERSON, "at once"),
    *_arrows("pause", [S.RUNNING], S.RUNNING, E.PAUSE_REQUESTED, Who.PERSON, "asks; refused after a cancel"),
    *_arrows("stop", [S.RUNNING], S.CANCELLED, E.CANCELLED, Who.EXECUTOR, "lease token matches, a cancel was asked"),
    *_arrows(
        "stop", [S.RUNNING], S.PAUSED, E.PAUSED, Who.EXECUTOR, "lease token matches, a pause was asked; run stays open"
    ),
    *_arrows(
        "hand_back",
        [S.RUNNING],
        S.QUEUED,
        E.HANDED_BACK,
        Who.EXECUTOR,
        "lease token matches; run stays open, no attempt used",
    ),
    *_arrows(
        "hand_back", [S.RUNNING], S.CANCELLED, E.CANCELLED, Who.EXECUTOR, "lease token matches, a cancel was asked"
    ),
    *_arrows(
        "hand_back",
        [S.RUNNING],
        S.PAUSED,
        E.PAUSED,
        Who.EXECUTOR,
        "lease token matches, a pause was asked; run stays open",
    ),
    *_arrows("resume", [S.PAUSED], S.QUEUED, E.RESUMED, Who.PERSON, "same job, same run"),
    *_arrows("resume", [S.FAILED], S.FAILED, E.RETRY_CREATED, Who.PERSON, "a new job at the head of its target"),
    *(Arrow("retry", s, s, E.RETRY_CREATED, Who.PERSON, "a new job after the chain's tail") for s in sorted(TERMINAL)),
    *_arrows(
        "resolve", [S.FAILED], S.FAILED, E.RESOLVED, Who.PERSON, "an unresolved tail; it no longer blocks its target"
    ),
)
PERSON_VERBS = ("release", "cancel", "pause", "resume", "retry", "resolve")


def arrow(verb: str, source: Status | str | None, target: Status | str | None = None) -> Arrow | None:
    """The arrow that `verb` takes from `source` (to `target`, where it has several), or None."""
    for each in ARROWS:
        if each.verb == verb and each.source == source and target in (None, each.target):
            return each
    return None


def allowed(source: Status | str) -> list[str]:
    """What a person may do with a job in this state."""
    return [verb for verb in PERSON_VERBS if arrow(verb, source)]
