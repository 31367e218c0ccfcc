"""Every verb from every state, driven by the map in `jobs.states`: what it allows moves, all else is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from uuid import uuid4

import pytest

from docs.generate import LIFECYCLE, lifecycle_page
from jobs.actors import SCHEDULER, Actor, ActorKind
from jobs.engine import finish, lifecycle
from jobs.engine.facts import gather_facts
from jobs.engine.finish import FinishStatus, JobResult
from jobs.errors import WrongState
from jobs.models import Job, JobMinute, JobRun
from jobs.outcomes import Completed, Failed, Skipped, Snoozed
from jobs.services import jobs as job_services
from jobs.states import (
    OPERATOR_VERBS,
    STATUS_MEANINGS,
    TERMINAL,
    TRANSITIONS,
    Cause,
    EventKind,
    Initiator,
    JobFacts,
    Status,
    StopMode,
    Transition,
    allowed_actions,
    find_transition,
)
from tests.factories import job_in
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables, list_events

pytestmark = pytest.mark.django_db

ADA = Actor(ActorKind.USER, "ada")
WHY = "because"

# Verbs that are told a job's id and whether they may.
ASKED: dict[str, Callable[[Job], Any]] = {
    "release": lambda job: job_services.release(job.pk, actor=ADA, reason=WHY),
    "cancel": lambda job: job_services.cancel(job.pk, actor=ADA, reason=WHY),
    "pause": lambda job: job_services.pause(job.pk, actor=ADA, reason=WHY),
    "resume": lambda job: job_services.resume(job.pk, actor=ADA, reason=WHY),
    "retry": lambda job: job_services.retry(job.pk, actor=ADA, reason=WHY),
    "resolve": lambda job: job_services.resolve(job.pk, actor=ADA, reason=WHY),
    "skip": lambda job: lifecycle.skip(job.pk, actor=ADA, reason=WHY),
    "withdraw": lambda job: lifecycle.withdraw(job.pk, actor=ADA, reason=WHY),
    "offer": lambda job: executor.offer(job.pk, actor=ADA),
    "start": lambda job: lifecycle.start(job.pk, actor=ADA, owner="r#0", token=uuid4(), lease_sec=30),
}
OWN_REASONS = {"offer": "admitted", "start": ""}  # of the scheduler itself; the others give WHY
ASKED_ARROWS = [
    item for item in TRANSITIONS if item.verb in ASKED and (item.by, item.verb) != (Initiator.EXECUTOR, "skip")
]

# Verbs that carry the token of a lease.
WORKER_CALLS: dict[str, Callable[[Job, Any], FinishStatus]] = {
    "complete": lambda job, token: _finish(job, token, Completed({"n": 1})),
    "skip": lambda job, token: _finish(job, token, Skipped(WHY)),
    "fail": lambda job, token: _finish(job, token, Failed(error=WHY, reason=WHY)),
    "stop": lambda job, token: finish.stop(job.pk, token, actor=ADA),
    "hand_back": lambda job, token: finish.hand_back(job.pk, token, actor=ADA, reason=WHY),
    "snooze": lambda job, token: finish.snooze(job.pk, token, Snoozed(60, WHY), actor=ADA),
    "expire": lambda job, token: _expire(job),
}
WORKER_ARROWS = [item for item in TRANSITIONS if item.verb in WORKER_CALLS and item not in ASKED_ARROWS]
STOP_MODE = {Status.CANCELLED: StopMode.CANCEL, Status.PAUSED: StopMode.PAUSE}


def _expire(job: Job) -> FinishStatus:
    ended = finish.expire([job], cause=Cause.LEASE_EXPIRED, error=WHY, describe=lambda _: {}, retry_in=lambda _: None)
    return FinishStatus.DONE if ended else FinishStatus.LOST


def _finish(job: Job, token: Any, outcome: Completed | Skipped | Failed) -> FinishStatus:
    return finish.finish([JobResult(job.pk, token, outcome)], actor=ADA)[job.pk]


def _name(value: Any) -> str:
    return f"{value.verb} {value.source} {value.target}" if isinstance(value, Transition) else str(value)


def _assert_left_behind(job: Job, way: Transition, reason: str, actor: Actor = ADA) -> None:
    """Exactly the event of the arrow, the run as the state says, and a terminal job counted once."""
    (event,) = list_events(job)
    assert (event.kind, event.from_status, event.to_status) == (way.event, way.source, way.target)
    assert (event.actor_kind, event.actor_name, event.reason) == (actor.kind, actor.name, reason)
    job.refresh_from_db()
    assert job.status == way.target
    run = JobRun.objects.filter(pk=job.pk).first()
    if run is not None:
        assert run.status == (way.target if way.target in TERMINAL else Status.RUNNING)
    ended = way.target in TERMINAL and way.source not in TERMINAL
    assert sum(minute.jobs for minute in JobMinute.objects.filter(outcome=job.status)) == int(ended)


def test_every_arrow_is_walked_by_these_tests() -> None:
    others = {item.verb for item in TRANSITIONS if item not in ASKED_ARROWS and item not in WORKER_ARROWS}
    assert others == {"enqueue", "claim"}
    assert set(OPERATOR_VERBS) <= set(ASKED)


@pytest.mark.parametrize("way", ASKED_ARROWS, ids=_name)
def test_a_legal_verb_takes_its_arrow_and_leaves_its_event(way: Transition) -> None:
    assert way.source is not None
    job = job_in(way.source)
    answer = ASKED[way.verb](job)
    _assert_left_behind(job, way, OWN_REASONS.get(way.verb, WHY))
    made = way.event == EventKind.RETRY_CREATED
    assert (answer.retry_of_id if made else answer.pk) == job.pk


@pytest.mark.parametrize(
    ("verb", "status"),
    [pair for pair in product(ASKED, Status) if not any((arrow.verb, arrow.source) == pair for arrow in ASKED_ARROWS)],
)
def test_an_illegal_verb_is_refused_by_name_and_changes_nothing(verb: str, status: Status) -> None:
    job = job_in(status)
    before = dump_tables()
    with pytest.raises(WrongState) as refusal:
        ASKED[verb](job)
    assert refusal.value.status == status
    assert refusal.value.allowed == allowed_actions(gather_facts(job))
    assert verb not in refusal.value.allowed
    assert dump_tables() == before


@pytest.mark.parametrize("way", WORKER_ARROWS, ids=_name)
def test_the_holder_of_the_lease_takes_its_arrow(way: Transition) -> None:
    asked = STOP_MODE.get(way.target)
    stop = {"cancel_requested": True, "cancel_mode": asked, "status_reason": WHY} if asked else {}
    job = job_in(Status.RUNNING, **stop)
    assert WORKER_CALLS[way.verb](job, job.lease_token) == FinishStatus.DONE
    actor = SCHEDULER if way.by == Initiator.SCHEDULER else ADA
    _assert_left_behind(job, way, "" if way.verb == "complete" else WHY, actor)
    assert (job.lease_owner, job.lease_token, job.lease_expires_at) == (None, None, None)


@pytest.mark.parametrize(("verb", "status"), [pair for pair in product(WORKER_CALLS, Status) if pair[0] != "expire"])
def test_a_stale_token_moves_nothing_from_any_state(verb: str, status: Status) -> None:
    job = job_in(status)
    before = dump_tables()
    assert WORKER_CALLS[verb](job, uuid4()) == FinishStatus.LOST
    assert dump_tables() == before


@pytest.mark.parametrize("status", Status)
def test_only_a_queued_job_is_claimed(status: Status) -> None:
    assert job_types.note.name == "tests.note"
    job = job_in(status)
    before = dump_tables()
    taken = executor.claim_next()
    if find_transition("claim", status) is None:
        assert taken is None
        assert dump_tables() == before
        return
    assert taken is not None
    assert (taken.pk, taken.status, taken.run.status) == (job.pk, Status.RUNNING, Status.RUNNING)
    (event,) = list_events(job)
    assert (event.kind, event.actor_kind, event.actor_name) == ("RUNNING", "worker", executor.NAME)


@pytest.mark.parametrize("hold", [False, True])
def test_a_job_is_born_queued_or_held(hold: bool) -> None:
    job = job_services.enqueue("tests.note", {"text": "a"}, hold=hold, actor=ADA, reason=WHY)
    way = find_transition("enqueue", None, Status.PENDING if hold else Status.QUEUED)
    assert way is not None
    first = list_events(job)[0]
    assert job.status == way.target == first.to_status
    assert (first.kind, first.from_status) == (way.event, "")
    assert (first.actor_kind, first.actor_name, first.reason) == (ADA.kind, ADA.name, WHY)


@pytest.mark.parametrize("verb", [*OPERATOR_VERBS, "skip"])
def test_a_verb_on_no_job_finds_none(verb: str) -> None:
    stranger = Job(id=uuid4())
    with pytest.raises(LookupError, match=str(stranger.pk)):
        ASKED[verb](stranger)


def test_what_is_allowed_is_what_the_arrows_say() -> None:
    for status in Status:
        legal = {item.verb for item in TRANSITIONS if item.source == status and item.by == Initiator.OPERATOR}
        facts = JobFacts(uuid4(), status)
        assert set(allowed_actions(facts)) & set(OPERATOR_VERBS) == legal


def test_terminal_states_have_no_way_out() -> None:
    assert all(item.source == item.target for item in TRANSITIONS if item.source in TERMINAL)


def test_every_state_has_a_meaning() -> None:
    assert set(STATUS_MEANINGS) == set(Status)


def test_the_page_on_the_lifecycle_is_the_map() -> None:
    assert LIFECYCLE.read_text() == lifecycle_page(), "run `make docs`"
