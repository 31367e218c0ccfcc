"""The map of a job's life: every state, every arrow between two of them, and what a person may do with a job.

Pure, no ORM. `docs/lifecycle.md` is generated from this file; the engine alone makes these transitions. `refusal` is the
one answer to "may this action be applied to this job, and why not?": the engine asks it under the job's lock, the API,
the console and the commands ask it for what they offer and foretell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID


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

# fmt: off
ARROWS: tuple[Arrow, ...] = (
    *_arrows("enqueue", [None], S.QUEUED, E.SUBMITTED, Who.PERSON, "params are valid for the handler"),
    *_arrows("enqueue", [None], S.PENDING, E.SUBMITTED, Who.PERSON, "`hold`, or a predecessor in its group is not done"),
    *_arrows("release", [S.PENDING], S.QUEUED, E.RELEASED, Who.PERSON, "no predecessor is pending"),
    *_arrows("claim", [S.QUEUED], S.RUNNING, E.RUNNING, Who.EXECUTOR, "fresh lease token; opens or continues the run"),
    *_arrows("offer", [S.QUEUED], S.DISPATCHING, E.DISPATCHING, Who.SCHEDULER, "counts against limits and capacity"),
    *_arrows("start", [S.DISPATCHING], S.RUNNING, E.RUNNING, Who.EXECUTOR, "fresh lease token; opens or continues the run"),
    *_arrows("withdraw", [S.DISPATCHING], S.QUEUED, E.WITHDRAWN, Who.SCHEDULER, "not started within the dispatch timeout"),
    *_arrows("complete", [S.RUNNING], S.COMPLETED, E.COMPLETED, Who.EXECUTOR, "lease token matches"),
    *_arrows("skip", [S.RUNNING], S.SKIPPED, E.SKIPPED, Who.EXECUTOR, "lease token matches"),
    *_arrows("skip", [S.PENDING, S.QUEUED], S.SKIPPED, E.SKIPPED, Who.SCHEDULER, "deadline, overlap or predecessor"),
    *_arrows("fail", [S.RUNNING], S.FAILED, E.FAILED, Who.EXECUTOR, "lease token matches; the retry policy decides on a new job"),
    *_arrows("expire", [S.RUNNING], S.FAILED, E.FAILED, Who.SCHEDULER, "lease and grace are over; the retry policy decides"),
    *_arrows("expire", [S.RUNNING], S.CANCELLED, E.CANCELLED, Who.SCHEDULER, "lease and grace are over, a cancel was asked"),
    *_arrows("expire", [S.RUNNING], S.PAUSED, E.PAUSED, Who.SCHEDULER, "lease and grace are over, a pause was asked; run stays open"),
    *_arrows("cancel", [S.PENDING, S.QUEUED, S.DISPATCHING, S.PAUSED], S.CANCELLED, E.CANCELLED, Who.PERSON, "at once"),
    *_arrows("cancel", [S.RUNNING], S.RUNNING, E.CANCEL_REQUESTED, Who.PERSON, "asks; upgrades a pause"),
    *_arrows("pause", [S.QUEUED, S.DISPATCHING], S.PAUSED, E.PAUSED, Who.PERSON, "at once"),
    *_arrows("pause", [S.RUNNING], S.RUNNING, E.PAUSE_REQUESTED, Who.PERSON, "asks; refused after a cancel"),
    *_arrows("stop", [S.RUNNING], S.CANCELLED, E.CANCELLED, Who.EXECUTOR, "lease token matches, a cancel was asked"),
    *_arrows("stop", [S.RUNNING], S.PAUSED, E.PAUSED, Who.EXECUTOR, "lease token matches, a pause was asked; run stays open"),
    *_arrows("hand_back", [S.RUNNING], S.QUEUED, E.HANDED_BACK, Who.EXECUTOR, "lease token matches; run stays open, no attempt used"),
    *_arrows("resume", [S.PAUSED], S.QUEUED, E.RESUMED, Who.PERSON, "same job, same run"),
    *_arrows("resume", [S.FAILED], S.FAILED, E.RETRY_CREATED, Who.PERSON, "a new job at the head of its target"),
    *(Arrow("retry", s, s, E.RETRY_CREATED, Who.PERSON, "a new job after the chain's tail") for s in sorted(TERMINAL)),
    *_arrows("resolve", [S.FAILED], S.FAILED, E.RESOLVED, Who.PERSON, "an unresolved tail; it no longer blocks its target"),
)
# fmt: on
PERSON_VERBS = ("release", "cancel", "pause", "resume", "retry", "resolve")
ACTIONS = (*PERSON_VERBS, "move", "update")  # what a person does with a job; the last two leave its status alone
WAITING = frozenset({Status.PENDING, Status.QUEUED})
EDITABLE_STATUSES = WAITING | {Status.PAUSED}
FROZEN_FIELDS = frozenset({"params", "job_type", "tenant", "target"})  # INV-001: once dispatched, for good
ALWAYS_EDITABLE_FIELDS = frozenset({"tags"})


def arrow(verb: str, source: Status | str | None, target: Status | str | None = None) -> Arrow | None:
    """The arrow that `verb` takes from `source` (to `target`, where it has several), or None."""
    for each in ARROWS:
        if each.verb == verb and each.source == source and target in (None, each.target):
            return each
    return None


class LatestAttempt(NamedTuple):
    """The end of a retry chain, as seen from an attempt that it superseded."""

    id: UUID
    status: Status
    in_backoff: bool = False


@dataclass(frozen=True)
class JobFacts:
    """What decides whether an action may be applied to a job. `engine.facts` gathers it."""

    job_id: UUID
    status: Status
    stop_mode: StopMode | None = None  # the stop request that its executor has not obeyed yet
    is_dispatched: bool = False
    is_resolved: bool = False
    is_retry: bool = False
    in_backoff: bool = False  # a retry that waits for its time
    waits_in_group: bool = False  # another place of its sequential group goes first
    superseded_by: LatestAttempt | None = None  # None: it is the latest attempt of its chain


class RefusalReason(StrEnum):
    """Why an action is refused."""

    STATUS = "STATUS"  # it does not start from this status
    SUPERSEDED = "SUPERSEDED"  # a later attempt took the job's place
    LIVE_TAIL = "LIVE_TAIL"  # the latest attempt has not ended
    WAITS_IN_GROUP = "WAITS_IN_GROUP"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"  # a pause would take the cancel back
    RESOLVED = "RESOLVED"
    FROZEN = "FROZEN"  # INV-001


@dataclass(frozen=True)
class Refusal:
    """Why an action cannot be applied to a job, and what can be.

    `status` is the job's; where `tail_id` names the latest attempt of its chain, that attempt's. `allowed` are the
    actions that the job itself accepts now. `field` is the one that could not be changed.
    """

    reason: RefusalReason
    message: str
    status: Status
    allowed: tuple[str, ...] = ()
    field: str = ""
    tail_id: UUID | None = None

    @property
    def code(self) -> str:
        return _CODES.get(self.reason, "wrong_state")


def refusal(action: str, facts: JobFacts, fields: Iterable[str] = ()) -> Refusal | None:
    """Say why `action` cannot be applied to a job; None if it can.

    `fields` are those that an `update` changes; the first that cannot be changed is refused. Without any the question
    is whether the job can be edited at all.
    """
    if action != "update":
        reason = _reason(action, facts)
        return None if reason is None else _refusal(reason, action, facts)
    for field in fields or [""]:
        if (reason := _update_reason(field, facts)) is not None:
            return _refusal(reason, action, facts, field)
    return None


def allowed_actions(facts: JobFacts) -> list[str]:
    """List the actions that a person may apply to a job now."""
    return [action for action in ACTIONS if _reason(action, facts) is None]


def refused_by_status(verb: str, facts: JobFacts) -> Refusal:
    """Refuse a verb that does not start from the job's status, or lost a race for it."""
    return _refusal(RefusalReason.STATUS, verb, facts)


def is_repeated(action: str, facts: JobFacts) -> bool:
    """Tell whether a running job was asked for the same stop before. It is accepted, and changes nothing."""
    return facts.stop_mode is not None and action == facts.stop_mode.lower()


class DryRun:
    """Say in turn what an action would do to several jobs: once a chain is retried, its next job finds a live one."""

    def __init__(self, action: str, fields: Iterable[str] = ()) -> None:
        self._action = action
        self._fields = tuple(fields)
        self._retried: set[UUID] = set()

    def refusal(self, facts: JobFacts) -> Refusal | None:
        chain = facts.job_id if facts.superseded_by is None else facts.superseded_by.id
        if chain in self._retried:
            facts = replace(facts, superseded_by=LatestAttempt(chain, Status.QUEUED))
        refused = refusal(self._action, facts, self._fields)
        if refused is None and self._action in ("retry", "resume"):
            self._retried.add(chain)
        return refused


_SOURCES = {
    **{verb: frozenset(each.source for each in ARROWS if each.verb == verb) for verb in {each.verb for each in ARROWS}},
    "move": WAITING,
    "update": EDITABLE_STATUSES,
}
_CODES = {
    RefusalReason.SUPERSEDED: "superseded",
    RefusalReason.LIVE_TAIL: "live_tail",
    RefusalReason.FROZEN: "invalid_operation",
}
_PAST = {
    "claim": "claimed",
    "offer": "offered",
    "start": "started",
    "withdraw": "withdrawn",
    "complete": "completed",
    "skip": "skipped",
    "fail": "failed",
    "expire": "expired",
    "stop": "stopped",
    "hand_back": "handed back",
    "release": "released",
    "cancel": "cancelled",
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "resolve": "resolved",
    "move": "moved",
    "update": "edited",
}


def _reason(action: str, facts: JobFacts) -> RefusalReason | None:
    if action == "retry":
        return _retry_reason(facts)
    if facts.superseded_by is not None:
        return RefusalReason.SUPERSEDED
    if facts.status not in _SOURCES[action]:
        return RefusalReason.STATUS
    if action == "release" and facts.waits_in_group:
        return RefusalReason.WAITS_IN_GROUP
    if action == "pause" and facts.stop_mode == StopMode.CANCEL:
        return RefusalReason.CANCEL_REQUESTED
    if action == "resolve" and facts.is_resolved:
        return RefusalReason.RESOLVED
    return None


def _retry_reason(facts: JobFacts) -> RefusalReason | None:
    """Whichever attempt is named, the latest counts. It has ended, or it waits out its backoff and starts at once."""
    latest = facts.superseded_by or LatestAttempt(facts.job_id, facts.status, facts.in_backoff)
    if latest.status in TERMINAL or latest.in_backoff:
        return None
    is_chain = facts.is_retry or facts.superseded_by is not None
    return RefusalReason.LIVE_TAIL if is_chain else RefusalReason.STATUS


def _update_reason(field: str, facts: JobFacts) -> RefusalReason | None:
    if field in ALWAYS_EDITABLE_FIELDS:
        return None
    if field in FROZEN_FIELDS and facts.is_dispatched:
        return RefusalReason.FROZEN
    return _reason("update", facts)


def _refusal(reason: RefusalReason, action: str, facts: JobFacts, field: str = "") -> Refusal:
    allowed = tuple(allowed_actions(facts))
    status, tail_id = facts.status, None
    if reason == RefusalReason.LIVE_TAIL or facts.superseded_by is not None:
        tail_id, status, _ = facts.superseded_by or LatestAttempt(facts.job_id, facts.status)
    if reason == RefusalReason.FROZEN:
        return Refusal(reason, f"Cannot modify {field} after dispatch", status, allowed, field, tail_id)
    cannot = f"its {field} cannot be changed" if field else f"cannot be {_PAST[action]}"
    hint = f"; allowed: {', '.join(allowed)}" if allowed else ""
    message = f"Job {facts.job_id} {_situation(reason, facts)} and {cannot}{hint}."
    return Refusal(reason, message, status, allowed, field, tail_id)


def _situation(reason: RefusalReason, facts: JobFacts) -> str:
    if reason == RefusalReason.WAITS_IN_GROUP:
        return "waits for another place of its group"
    if reason == RefusalReason.CANCEL_REQUESTED:
        return "was already asked to cancel"
    if reason == RefusalReason.RESOLVED:
        return "is already resolved"
    if facts.superseded_by is not None:
        return f"was superseded by {facts.superseded_by.id}, which is {facts.superseded_by.status},"
    return f"is {facts.status}"
