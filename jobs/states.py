"""The states of a job, the transitions between them, and the actions of operators.

Pure, no ORM. `docs/lifecycle.md` is generated from this file; only the engine makes these transitions. `refusal`
decides whether an action may be applied to a job: the engine calls it under the job's lock; the API, the console and
the commands call it to list allowed actions and for dry runs.
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


STATUS_MEANINGS = {
    Status.PENDING: "on hold: submitted with `hold`, or it waits for other members of its group",
    Status.QUEUED: "waiting for its start time, its target, a free slot in the limits, and admission",
    Status.DISPATCHING: "reserved for a remote executor that has not started it yet",
    Status.RUNNING: "leased by exactly one executor",
    Status.PAUSED: "stopped by an operator and resumable; its run stays open and its target stays blocked",
    Status.COMPLETED: "the handler returned",
    Status.FAILED: "the handler raised, exceeded its time or tokens, or its executor stopped responding",
    Status.SKIPPED: "nothing to do: decided by the handler, the deadline or a rule",
    Status.CANCELLED: "cancelled by an operator or after a failed predecessor",
}

TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.SKIPPED, Status.CANCELLED})
LIVE = frozenset(Status) - TERMINAL
ACTIVE = frozenset({Status.DISPATCHING, Status.RUNNING})
SUCCESSFUL = frozenset({Status.COMPLETED, Status.SKIPPED})
RUN_STATUSES = (Status.RUNNING, *sorted(TERMINAL))


class StopMode(StrEnum):
    """The stop that an operator requested of a running job."""

    CANCEL = "CANCEL"
    PAUSE = "PAUSE"


class UniqueUntil(StrEnum):
    """How long a job is the only one with its unique key: until it starts, or until it ends."""

    START = "start"
    END = "end"


class OnConflict(StrEnum):
    """The effect of a submission whose unique key a job has: return that job, or replace its params and start time."""

    RETURN = "return"
    REPLACE = "replace"


STATUS_AFTER_STOP = {StopMode.CANCEL: Status.CANCELLED, StopMode.PAUSE: Status.PAUSED}


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
    SNOOZED = "SNOOZED"
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
    """Why a job FAILED; stored in the data of its last event."""

    ERROR = "ERROR"
    TIMEOUT = "TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    CRASH_RECOVERY = "CRASH_RECOVERY"
    TOKEN_LIMIT = "TOKEN_LIMIT"


DEFAULT_PAUSE_REASON = "Job was interrupted by user"
ADMITTED_REASON = "admitted"  # of the event with which a job leaves the queue: DISPATCHING, or RUNNING of a claim
# The reasons of the scheduler itself for FAILED, SKIPPED and CANCELLED; handlers and operators give all others.
LEASE_EXPIRED_REASON, CRASH_RECOVERY_REASON = "lease expired", "Scheduler crash recovery"  # of recovered jobs
TIMEOUT_REASON, TOKEN_LIMIT_REASON = "timeout", "token limit exceeded"
SNOOZE_LIMIT_REASON = "snoozed too often"
REJECTED_RESULT_REASON = "the database rejected its result"
DEADLINE_PASSED_REASON = "deadline passed"
OVERLAP_REASON = "the previous run is still"  # begins the reason of a run that its schedule skipped
PREDECESSOR_REASONS = {Status.FAILED: "predecessor failed", Status.CANCELLED: "predecessor cancelled"}


class Initiator(StrEnum):
    """Who makes a transition; the values are shown in docs/lifecycle.md."""

    OPERATOR = "an operator, or a program acting for one"
    EXECUTOR = "the executor that holds the lease"
    SCHEDULER = "the scheduler itself"


@dataclass(frozen=True)
class Transition:
    """One allowed change of status. `source` is None when the job is inserted."""

    verb: str
    source: Status | None
    target: Status
    event: EventKind
    by: Initiator
    rule: str = ""


S, E = Status, EventKind
_OPERATOR, _EXECUTOR, _SCHEDULER = Initiator

# Verb, sources, target, event, initiator, rule.
# fmt: off
_TABLE: list[tuple[str, list[Status] | list[None], Status, EventKind, Initiator, str]] = [
    ("enqueue", [None], S.QUEUED, E.SUBMITTED, _OPERATOR, "params are valid for the handler"),
    ("enqueue", [None], S.PENDING, E.SUBMITTED, _OPERATOR, "`hold`, or it waits for other members of its group"),
    ("release", [S.PENDING], S.QUEUED, E.RELEASED, _OPERATOR, "no predecessor is pending"),
    ("claim", [S.QUEUED], S.RUNNING, E.RUNNING, _EXECUTOR, "fresh lease token; opens or continues the run"),
    ("offer", [S.QUEUED], S.DISPATCHING, E.DISPATCHING, _SCHEDULER, "counts against limits and capacity"),
    ("start", [S.DISPATCHING], S.RUNNING, E.RUNNING, _EXECUTOR, "fresh lease token; opens or continues the run"),
    ("withdraw", [S.DISPATCHING], S.QUEUED, E.WITHDRAWN, _SCHEDULER, "not started within the dispatch timeout"),
    ("complete", [S.RUNNING], S.COMPLETED, E.COMPLETED, _EXECUTOR, "lease token matches"),
    ("skip", [S.RUNNING], S.SKIPPED, E.SKIPPED, _EXECUTOR, "lease token matches"),
    ("skip", [S.PENDING, S.QUEUED], S.SKIPPED, E.SKIPPED, _SCHEDULER, "deadline, overlap or predecessor"),
    ("fail", [S.RUNNING], S.FAILED, E.FAILED, _EXECUTOR, "lease token matches; the retry policy decides on a new job"),
    ("expire", [S.RUNNING], S.FAILED, E.FAILED, _SCHEDULER, "lease and grace over; the retry policy decides"),
    ("expire", [S.RUNNING], S.CANCELLED, E.CANCELLED, _SCHEDULER, "lease and grace over, cancel requested"),
    ("expire", [S.RUNNING], S.PAUSED, E.PAUSED, _SCHEDULER, "lease and grace over, pause requested; run stays open"),
    ("cancel", [S.PENDING, S.QUEUED, S.DISPATCHING, S.PAUSED], S.CANCELLED, E.CANCELLED, _OPERATOR, "at once"),
    ("cancel", [S.RUNNING], S.RUNNING, E.CANCEL_REQUESTED, _OPERATOR, "sends a stop request; replaces a pause"),
    ("pause", [S.QUEUED, S.DISPATCHING], S.PAUSED, E.PAUSED, _OPERATOR, "at once"),
    ("pause", [S.RUNNING], S.RUNNING, E.PAUSE_REQUESTED, _OPERATOR, "sends a stop request; refused after a cancel"),
    ("stop", [S.RUNNING], S.CANCELLED, E.CANCELLED, _EXECUTOR, "lease token matches, cancel requested"),
    ("stop", [S.RUNNING], S.PAUSED, E.PAUSED, _EXECUTOR, "lease token matches, pause requested; run stays open"),
    ("hand_back", [S.RUNNING], S.QUEUED, E.HANDED_BACK, _EXECUTOR, "lease token matches; run stays open, same attempt"),
    ("snooze", [S.RUNNING], S.QUEUED, E.SNOOZED, _EXECUTOR, "lease token matches; run stays open, same attempt"),
    ("resume", [S.PAUSED], S.QUEUED, E.RESUMED, _OPERATOR, "same job, same run"),
    ("resume", [S.FAILED], S.FAILED, E.RETRY_CREATED, _OPERATOR, "a new job at the head of its target"),
    *(
        ("retry", [status], status, E.RETRY_CREATED, _OPERATOR, "a new job after the latest attempt")
        for status in sorted(TERMINAL)
    ),
    ("resolve", [S.FAILED], S.FAILED, E.RESOLVED, _OPERATOR, "unresolved latest attempt; no longer blocks its target"),
]
# fmt: on
TRANSITIONS: tuple[Transition, ...] = tuple(
    Transition(verb, source, target, event, by, rule)
    for verb, sources, target, event, by, rule in _TABLE
    for source in sources
)
OPERATOR_VERBS = ("release", "cancel", "pause", "resume", "retry", "resolve")
ACTIONS = (*OPERATOR_VERBS, "move", "update")  # all actions of operators; the last two do not change the status
WAITING = frozenset({Status.PENDING, Status.QUEUED})
EDITABLE_STATUSES = WAITING | {Status.PAUSED}
FROZEN_FIELDS = frozenset({"params", "job_type", "tenant", "target"})  # INV-001: never changed once dispatched
ALWAYS_EDITABLE_FIELDS = frozenset({"tags"})


def find_transition(verb: str, source: Status | str | None, target: Status | str | None = None) -> Transition | None:
    """Return the transition of `verb` from `source` (to `target`, if there are several), or None."""
    for transition in TRANSITIONS:
        if transition.verb == verb and transition.source == source and target in (None, transition.target):
            return transition
    return None


class LatestAttempt(NamedTuple):
    """The latest attempt of a retry chain, as seen from an earlier one."""

    id: UUID
    status: Status
    in_backoff: bool = False


@dataclass(frozen=True)
class JobFacts:
    """The facts that decide whether an action may be applied to a job; read by `engine.facts`."""

    job_id: UUID
    status: Status
    stop_mode: StopMode | None = None  # the stop request that its executor has not followed yet
    is_dispatched: bool = False
    is_resolved: bool = False
    is_retry: bool = False
    in_backoff: bool = False  # a retry that waits until its backoff is over
    waits_in_group: bool = False  # other members of its group go first
    superseded_by: LatestAttempt | None = None  # None: the job is the latest attempt of its chain
    retry_key: tuple[str, str] | None = None  # the tenant and the unique key that a retry would carry
    key_holder_id: UUID | None = None  # another live job has that key


class RefusalReason(StrEnum):
    """Why an action is refused."""

    STATUS = "STATUS"  # the action is not allowed in this status
    SUPERSEDED = "SUPERSEDED"  # the chain has a later attempt
    LIVE_TAIL = "LIVE_TAIL"  # the latest attempt has not finished
    WAITS_IN_GROUP = "WAITS_IN_GROUP"
    CANCEL_REQUESTED = "CANCEL_REQUESTED"  # a pause would undo the cancel
    RESOLVED = "RESOLVED"
    FROZEN = "FROZEN"  # INV-001
    UNIQUE_KEY = "UNIQUE_KEY"  # another live job has the unique key


@dataclass(frozen=True)
class Refusal:
    """Why an action cannot be applied to a job, and which actions can.

    `status` is the status of the job or, if `tail_id` is set, of the latest attempt of its chain. `allowed` lists the
    actions that the job itself accepts now. `field` is the field that cannot be changed, `key_holder_id` the job that
    has the unique key.
    """

    reason: RefusalReason
    message: str
    status: Status
    allowed: tuple[str, ...] = ()
    field: str = ""
    tail_id: UUID | None = None
    key_holder_id: UUID | None = None

    @property
    def code(self) -> str:
        return _CODES.get(self.reason, "wrong_state")


def refusal(action: str, facts: JobFacts, fields: Iterable[str] = ()) -> Refusal | None:
    """Return why `action` cannot be applied to a job; None if it can.

    `fields` are those that an `update` changes; the refusal names the first that cannot be changed. Without any, return
    whether the job can be edited at all.
    """
    if action != "update":
        reason = _find_reason(action, facts)
        return None if reason is None else _build_refusal(reason, action, facts)
    for field in fields or [""]:
        if (reason := _find_update_reason(field, facts)) is not None:
            return _build_refusal(reason, action, facts, field)
    return None


def allowed_actions(facts: JobFacts) -> list[str]:
    """List the actions that an operator may apply to a job now."""
    return [action for action in ACTIONS if _find_reason(action, facts) is None]


def build_status_refusal(verb: str, facts: JobFacts) -> Refusal:
    """Build the refusal of a verb that is not allowed in the job's status, or lost a race."""
    return _build_refusal(RefusalReason.STATUS, verb, facts)


def is_repeated_stop(action: str, facts: JobFacts) -> bool:
    """Return whether the same stop was requested before. Requesting it again is accepted and changes nothing."""
    return facts.stop_mode is not None and action == facts.stop_mode.lower()


class DryRun:
    """Predict the effect of an action on several jobs in turn.

    A chain can be retried once only, and so can one of the jobs with the same unique key.
    """

    def __init__(self, action: str, fields: Iterable[str] = ()) -> None:
        self._action = action
        self._fields = tuple(fields)
        self._retried: set[UUID] = set()
        self._key_holders: dict[tuple[str, str], UUID] = {}

    def refusal(self, facts: JobFacts) -> Refusal | None:
        """Return why the action would be refused for the next job; None if it would be applied."""
        chain = facts.job_id if facts.superseded_by is None else facts.superseded_by.id
        if chain in self._retried:
            facts = replace(facts, superseded_by=LatestAttempt(chain, Status.QUEUED))
        elif facts.retry_key in self._key_holders:
            facts = replace(facts, key_holder_id=self._key_holders[facts.retry_key])
        reason = refusal(self._action, facts, self._fields)
        if reason is None and self._action in ("retry", "resume"):
            self._retried.add(chain)
            if facts.retry_key is not None:
                self._key_holders[facts.retry_key] = facts.job_id
        return reason


_SOURCES = {
    **{verb: frozenset(t.source for t in TRANSITIONS if t.verb == verb) for verb in {t.verb for t in TRANSITIONS}},
    "move": WAITING,
    "update": EDITABLE_STATUSES,
}
_CODES = {
    RefusalReason.SUPERSEDED: "superseded",
    RefusalReason.LIVE_TAIL: "live_tail",
    RefusalReason.FROZEN: "invalid_operation",
    RefusalReason.UNIQUE_KEY: "unique_key_taken",
}
_PARTICIPLES = {
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
    "snooze": "snoozed",
    "release": "released",
    "cancel": "cancelled",
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "resolve": "resolved",
    "move": "moved",
    "update": "edited",
}


def _find_reason(action: str, facts: JobFacts) -> RefusalReason | None:
    if action == "retry":
        return _find_retry_reason(facts)
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
    if action == "resume" and facts.status == Status.FAILED and facts.key_holder_id is not None:
        return RefusalReason.UNIQUE_KEY
    return None


def _find_retry_reason(facts: JobFacts) -> RefusalReason | None:
    """Check the latest attempt of the chain: it must have finished, or wait in its backoff."""
    latest = facts.superseded_by or LatestAttempt(facts.job_id, facts.status, facts.in_backoff)
    if latest.status in TERMINAL and facts.key_holder_id is not None:
        return RefusalReason.UNIQUE_KEY
    if latest.status in TERMINAL or latest.in_backoff:
        return None
    is_chain = facts.is_retry or facts.superseded_by is not None
    return RefusalReason.LIVE_TAIL if is_chain else RefusalReason.STATUS


def _find_update_reason(field: str, facts: JobFacts) -> RefusalReason | None:
    if field in ALWAYS_EDITABLE_FIELDS:
        return None
    if field in FROZEN_FIELDS and facts.is_dispatched:
        return RefusalReason.FROZEN
    return _find_reason("update", facts)


def _build_refusal(reason: RefusalReason, action: str, facts: JobFacts, field: str = "") -> Refusal:
    allowed = tuple(allowed_actions(facts))
    status, tail_id = facts.status, None
    if reason == RefusalReason.LIVE_TAIL or facts.superseded_by is not None:
        tail_id, status, _ = facts.superseded_by or LatestAttempt(facts.job_id, facts.status)
    if reason == RefusalReason.FROZEN:
        return Refusal(reason, f"Cannot modify {field} after dispatch", status, allowed, field, tail_id)
    cannot = f"its {field} cannot be changed" if field else f"cannot be {_PARTICIPLES[action]}"
    hint = f"; allowed: {', '.join(allowed)}" if allowed else ""
    message = f"Job {facts.job_id} {_describe_situation(reason, facts)} and {cannot}{hint}."
    holder_id = facts.key_holder_id if reason == RefusalReason.UNIQUE_KEY else None
    return Refusal(reason, message, status, allowed, field, tail_id, holder_id)


def _describe_situation(reason: RefusalReason, facts: JobFacts) -> str:
    if reason == RefusalReason.WAITS_IN_GROUP:
        return "waits for another member of its group"
    if reason == RefusalReason.CANCEL_REQUESTED:
        return "has a cancel request"
    if reason == RefusalReason.UNIQUE_KEY:
        return f"has a unique key that job {facts.key_holder_id} has now"
    if reason == RefusalReason.RESOLVED:
        return "is already resolved"
    if facts.superseded_by is not None:
        return f"was superseded by {facts.superseded_by.id}, which is {facts.superseded_by.status},"
    return f"is {facts.status}"
