"""`states.refusal`: every action from every status, and with every fact that matters. No database."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from jobs.errors import Conflict, InvalidOperationError, LiveTail, Superseded, WrongState
from jobs.states import (
    ACTIONS,
    LIVE,
    TERMINAL,
    TRANSITIONS,
    DryRun,
    JobFacts,
    LatestAttempt,
    RefusalReason,
    Status,
    StopMode,
    allowed_actions,
    build_status_refusal,
    is_repeated_stop,
    refusal,
)

pytestmark = pytest.mark.once

JOB, LATEST = UUID(int=1), UUID(int=2)
PAST = {
    "release": "released",
    "cancel": "cancelled",
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "resolve": "resolved",
    "move": "moved",
    "update": "edited",
}
ALLOWED = {
    Status.PENDING: ["release", "cancel", "move", "update"],
    Status.QUEUED: ["cancel", "pause", "move", "update"],
    Status.DISPATCHING: ["cancel", "pause"],
    Status.RUNNING: ["cancel", "pause"],
    Status.PAUSED: ["cancel", "resume", "update"],
    Status.COMPLETED: ["retry"],
    Status.FAILED: ["resume", "retry", "resolve"],
    Status.SKIPPED: ["retry"],
    Status.CANCELLED: ["retry"],
}
EVERY_FACT: dict[str, list[Any]] = {
    "stop_mode": [None, *StopMode],
    "is_dispatched": [False, True],
    "is_resolved": [False, True],
    "is_retry": [False, True],
    "in_backoff": [False, True],
    "waits_in_group": [False, True],
    "superseded_by": [
        None,
        LatestAttempt(LATEST, Status.RUNNING),
        LatestAttempt(LATEST, Status.QUEUED, in_backoff=True),
        LatestAttempt(LATEST, Status.FAILED),
    ],
}


def facts(status: Status, **known: Any) -> JobFacts:
    return JobFacts(JOB, status, **known)


@pytest.mark.parametrize(("action", "status"), list(product(ACTIONS, Status)))
def test_an_action_starts_from_its_statuses_and_says_what_else_is_allowed(action: str, status: Status) -> None:
    refused = refusal(action, facts(status))
    assert (refused is None) == (action in ALLOWED[status])
    if refused is not None:
        assert (refused.reason, refused.code) == (RefusalReason.STATUS, "wrong_state")
        assert (refused.status, refused.field, refused.tail_id) == (status, "", None)
        allowed = ", ".join(ALLOWED[status])
        assert refused.message == f"Job {JOB} is {status} and cannot be {PAST[action]}; allowed: {allowed}."


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("is_dispatched", [False, True])
def test_a_dispatch_freezes_fields_and_no_action(status: Status, is_dispatched: bool) -> None:
    assert allowed_actions(facts(status, is_dispatched=is_dispatched)) == ALLOWED[status]


@pytest.mark.parametrize(
    ("known", "allowed"),
    [
        ({"status": Status.RUNNING, "stop_mode": StopMode.CANCEL}, ["cancel"]),
        ({"status": Status.RUNNING, "stop_mode": StopMode.PAUSE}, ["cancel", "pause"]),
        ({"status": Status.FAILED, "is_resolved": True}, ["resume", "retry"]),
        ({"status": Status.PENDING, "waits_in_group": True}, ["cancel", "move", "update"]),
        ({"status": Status.QUEUED, "is_retry": True}, ["cancel", "pause", "move", "update"]),
        (
            {"status": Status.QUEUED, "is_retry": True, "in_backoff": True},
            ["cancel", "pause", "retry", "move", "update"],
        ),
        ({"status": Status.FAILED, "superseded_by": LatestAttempt(LATEST, Status.QUEUED)}, []),
        ({"status": Status.FAILED, "superseded_by": LatestAttempt(LATEST, Status.QUEUED, True)}, ["retry"]),
        ({"status": Status.FAILED, "superseded_by": LatestAttempt(LATEST, Status.COMPLETED)}, ["retry"]),
    ],
    ids=str,
)
def test_what_is_allowed_in_a_situation(known: dict[str, Any], allowed: list[str]) -> None:
    assert allowed_actions(JobFacts(JOB, **known)) == allowed


@pytest.mark.parametrize(
    ("action", "known", "reason", "message"),
    [
        (
            "pause",
            {"status": Status.RUNNING, "stop_mode": StopMode.CANCEL},
            RefusalReason.CANCEL_REQUESTED,
            f"Job {JOB} has a cancel request and cannot be paused; allowed: cancel.",
        ),
        (
            "resolve",
            {"status": Status.FAILED, "is_resolved": True},
            RefusalReason.RESOLVED,
            f"Job {JOB} is already resolved and cannot be resolved; allowed: resume, retry.",
        ),
        (
            "release",
            {"status": Status.PENDING, "waits_in_group": True},
            RefusalReason.WAITS_IN_GROUP,
            f"Job {JOB} waits for another member of its group and cannot be released; allowed: cancel, move, update.",
        ),
        (
            "retry",
            {"status": Status.RUNNING, "is_retry": True},
            RefusalReason.LIVE_TAIL,
            f"Job {JOB} is RUNNING and cannot be retried; allowed: cancel, pause.",
        ),
        (
            "retry",
            {"status": Status.FAILED, "superseded_by": LatestAttempt(LATEST, Status.RUNNING)},
            RefusalReason.LIVE_TAIL,
            f"Job {JOB} was superseded by {LATEST}, which is RUNNING, and cannot be retried.",
        ),
        (
            "cancel",
            {"status": Status.FAILED, "superseded_by": LatestAttempt(LATEST, Status.FAILED)},
            RefusalReason.SUPERSEDED,
            f"Job {JOB} was superseded by {LATEST}, which is FAILED, and cannot be cancelled; allowed: retry.",
        ),
    ],
)
def test_a_refusal_says_why_and_what_else(
    action: str, known: dict[str, Any], reason: RefusalReason, message: str
) -> None:
    refused = refusal(action, JobFacts(JOB, **known))
    assert refused is not None
    assert (refused.reason, refused.message) == (reason, message)


@pytest.mark.parametrize(("status", "latest"), list(product(sorted(TERMINAL), Status)))
@pytest.mark.parametrize("action", sorted(set(ACTIONS) - {"retry"}))
def test_a_superseded_attempt_names_the_latest_one(action: str, status: Status, latest: Status) -> None:
    refused = refusal(action, facts(status, superseded_by=LatestAttempt(LATEST, latest)))
    assert refused is not None
    assert (refused.code, refused.tail_id, refused.status) == ("superseded", LATEST, latest)
    assert refused.allowed == (("retry",) if latest in TERMINAL else ())


@pytest.mark.parametrize("latest", sorted(LIVE))
@pytest.mark.parametrize("is_named", [False, True])
def test_a_retry_is_refused_while_the_latest_attempt_lives(latest: Status, is_named: bool) -> None:
    """Whichever attempt is named; a live job that is no retry has no chain to speak of."""
    superseded = facts(Status.FAILED, superseded_by=LatestAttempt(LATEST, latest))
    refused = refusal("retry", JobFacts(LATEST, latest, is_retry=True) if is_named else superseded)
    assert refused is not None
    assert (refused.code, refused.tail_id, refused.status) == ("live_tail", LATEST, latest)
    alone = refusal("retry", facts(latest))
    assert alone is not None
    assert (alone.code, alone.tail_id) == ("wrong_state", None)


@pytest.mark.parametrize(
    ("field", "status", "is_dispatched"),
    list(product(["params", "job_type", "tenant", "target", "priority", "not_before", "tags"], Status, [False, True])),
)
def test_a_field_is_frozen_for_good_or_changes_while_the_job_waits(
    field: str, status: Status, is_dispatched: bool
) -> None:
    refused = refusal("update", facts(status, is_dispatched=is_dispatched), ["tags", field])
    if field == "tags":
        assert refused is None
    elif is_dispatched and field in ("params", "job_type", "tenant", "target"):
        assert refused is not None
        assert (refused.code, refused.field) == ("invalid_operation", field)
        assert refused.message == f"Cannot modify {field} after dispatch"
    elif status in (Status.PENDING, Status.QUEUED, Status.PAUSED):
        assert refused is None
    else:
        assert refused is not None
        assert (refused.code, refused.field, refused.status) == ("wrong_state", field, status)
        assert refused.message.startswith(f"Job {JOB} is {status} and its {field} cannot be changed; allowed: ")


def test_of_several_fields_the_first_that_cannot_change_is_named() -> None:
    refused = refusal("update", facts(Status.QUEUED, is_dispatched=True), ["priority", "target", "params"])
    assert refused is not None
    assert refused.field == "target"


@pytest.mark.parametrize("status", Status)
def test_in_any_situation_a_refusal_lists_exactly_what_is_accepted(status: Status) -> None:
    for known in product(*EVERY_FACT.values()):
        situation = facts(status, **dict(zip(EVERY_FACT, known, strict=True)))
        accepted = [action for action in ACTIONS if refusal(action, situation) is None]
        assert allowed_actions(situation) == accepted
        for action in set(ACTIONS) - set(accepted):
            refused = refusal(action, situation)
            assert refused is not None
            assert list(refused.allowed) == accepted


@pytest.mark.parametrize("verb", sorted({item.verb for item in TRANSITIONS} - {"enqueue"}))
def test_every_verb_can_be_refused_in_a_sentence(verb: str) -> None:
    refused = build_status_refusal(verb, facts(Status.COMPLETED))
    assert refused.message.startswith(f"Job {JOB} is COMPLETED and cannot be ")


def test_a_repeated_stop_request_is_accepted_and_known_as_such() -> None:
    asked = {mode: facts(Status.RUNNING, stop_mode=mode) for mode in StopMode}
    assert [is_repeated_stop(action, asked[StopMode.CANCEL]) for action in ("cancel", "pause")] == [True, False]
    assert [is_repeated_stop(action, asked[StopMode.PAUSE]) for action in ("cancel", "pause")] == [False, True]
    assert refusal("cancel", asked[StopMode.CANCEL]) is refusal("pause", asked[StopMode.PAUSE]) is None
    assert not is_repeated_stop("cancel", facts(Status.RUNNING))


def test_a_dry_run_retries_a_chain_once() -> None:
    chain = LatestAttempt(LATEST, Status.FAILED)
    named = [
        JobFacts(uuid4(), Status.FAILED, superseded_by=chain),
        JobFacts(uuid4(), Status.FAILED, superseded_by=chain),
        JobFacts(LATEST, Status.FAILED, is_retry=True),
        JobFacts(uuid4(), Status.FAILED),
    ]
    dry_run = DryRun("retry")
    refusals = [dry_run.refusal(item) for item in named]
    assert [None if item is None else item.reason for item in refusals] == [
        None,
        RefusalReason.LIVE_TAIL,
        RefusalReason.LIVE_TAIL,
        None,
    ]
    assert [DryRun("cancel").refusal(item) is None for item in named] == [False] * 4


@pytest.mark.parametrize(
    ("action", "known", "kind"),
    [
        ("cancel", {"status": Status.COMPLETED}, WrongState),
        ("cancel", {"status": Status.FAILED, "superseded_by": LatestAttempt(LATEST, Status.FAILED)}, Superseded),
        ("retry", {"status": Status.FAILED, "superseded_by": LatestAttempt(LATEST, Status.RUNNING)}, LiveTail),
        ("update", {"status": Status.RUNNING, "is_dispatched": True}, InvalidOperationError),
    ],
)
def test_each_refusal_has_its_error(action: str, known: dict[str, Any], kind: type[Conflict]) -> None:
    refused = refusal(action, JobFacts(JOB, **known), ["params"])
    assert refused is not None
    error = Conflict.from_refusal(refused)
    assert (type(error), error.code, str(error)) == (kind, refused.code, refused.message)
    assert (error.status, error.allowed, error.refusal) == (refused.status, list(refused.allowed), refused)
    assert (error.field, error.tail_id) == (refused.field, refused.tail_id)
