"""When a worker looks again, as a table: no database, no clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.engine.sql.promote import QueueState
from jobs.engine.worker.claim_schedule import ClaimSchedule, Pace

pytestmark = pytest.mark.once
NOW = 1000.0
EMPTY = QueueState(due_sec=None, has_dirty_targets=False, has_ready_jobs=False)
READY = QueueState(due_sec=None, has_dirty_targets=False, has_ready_jobs=True)
MARKED = QueueState(due_sec=None, has_dirty_targets=True, has_ready_jobs=False)
DUE = QueueState(due_sec=0.0, has_dirty_targets=False, has_ready_jobs=False)
LATER = QueueState(due_sec=3.0, has_dirty_targets=False, has_ready_jobs=False)
PACE = Pace(poll_sec=1.0, is_notified=True, is_saturated=False, is_denied=False)


def claim_turn(
    schedule: ClaimSchedule, now: float, ahead: QueueState, *, got: int = 0, asked: int = 1, pace: Pace = PACE
) -> None:
    """A turn that claims, as the loop takes it."""
    schedule.begin_turn(now)
    if schedule.should_poll:
        schedule.record_look(now, ahead, pace)
    if schedule.should_promote:
        schedule.record_promotion(is_unfinished=False)
    if schedule.record_claim(requested=asked, claimed=got, took_sec=0.01):
        schedule.record_look(now, ahead, pace)
    schedule.plan_next_look(now, claimed=got, is_saturated=pace.is_saturated)


def idle(ahead: QueueState = EMPTY, *, pace: Pace = PACE) -> ClaimSchedule:
    """A worker that was woken at NOW and got no job; before that it had promoted, and polled an empty queue."""
    schedule = ClaimSchedule()
    for seconds in (2.0, 0.5):
        claim_turn(schedule, NOW - seconds, EMPTY)
    schedule.wake(targets_changed=False)
    claim_turn(schedule, NOW, ahead, pace=pace)
    return schedule


def test_a_new_worker_polls_promotes_and_claims_at_once() -> None:
    schedule = ClaimSchedule()
    schedule.begin_turn(NOW)
    assert (schedule.should_poll, schedule.should_promote, schedule.should_claim) == (True, True, True)
    assert schedule.wait_sec(NOW) == 0
    assert schedule.unserved_check_at <= NOW
    assert ClaimSchedule(checks_unserved=False).unserved_check_at > NOW


@pytest.mark.parametrize(
    ("ahead", "pace", "seconds"),
    [
        pytest.param(EMPTY, PACE, 10.0, id="listening: ten times rarer"),
        pytest.param(EMPTY, PACE._replace(is_notified=False), 1.0, id="polling"),
        pytest.param(EMPTY, PACE._replace(is_saturated=True), 1.0, id="nobody announces room in a limit"),
        pytest.param(EMPTY, PACE._replace(jitter=1.1), 11.0, id="jitter"),
        pytest.param(LATER, PACE, 3.0, id="until the next job is due"),
        pytest.param(QueueState(60.0, False, False), PACE, 10.0, id="due after the poll"),
        pytest.param(READY, PACE, 0.1, id="ready, and locked by another: soon"),
        pytest.param(READY, PACE._replace(is_saturated=True), 1.0, id="ready, and a limit is full: no sooner"),
        pytest.param(READY, PACE._replace(is_saturated=True, is_denied=True, poll_sec=9), 1.8, id="not admitted"),
        pytest.param(MARKED, PACE, 0.05, id="a target changed meanwhile"),
    ],
)
def test_how_long_an_idle_worker_waits(ahead: QueueState, pace: Pace, seconds: float) -> None:
    schedule = idle(ahead, pace=pace)
    assert schedule.wait_sec(NOW) == pytest.approx(seconds)
    schedule.begin_turn(NOW + seconds - 0.01)
    assert not schedule.should_claim
    schedule.begin_turn(NOW + seconds)
    assert schedule.should_poll


def test_slow_questions_of_admission_are_asked_for_a_tenth_of_the_time_at_most() -> None:
    schedule = idle()
    schedule.record_claim(requested=1, claimed=0, took_sec=2.0)
    schedule.record_look(NOW, EMPTY, PACE._replace(is_denied=True))
    assert schedule.wait_sec(NOW) == 20.0


def test_claims_that_get_nothing_of_what_is_ready_become_rarer() -> None:
    schedule, waits, now = idle(), [], NOW
    for _ in range(4):
        now += 100
        claim_turn(schedule, now, READY)
        waits.append(schedule.wait_sec(now))
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])
    schedule.wake()
    claim_turn(schedule, now, READY)
    assert schedule.wait_sec(now) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("event", "is_plain"),
    [
        pytest.param(lambda s: s.wake(targets_changed=False), True, id="something is ready"),
        pytest.param(lambda s: s.wake(), False, id="a target changed"),
        pytest.param(lambda s: s.record_free_slot(), True, id="a job ended"),
        pytest.param(lambda s: s.record_failed_turn(), False, id="the last turn failed"),
    ],
)
def test_what_makes_an_idle_worker_claim_at_once(event: Callable[[ClaimSchedule], None], is_plain: bool) -> None:
    schedule = idle()
    event(schedule)
    assert schedule.wait_sec(NOW) == 0
    schedule.begin_turn(NOW)
    assert (schedule.should_claim, schedule.is_plain) == (True, is_plain)


def test_a_claim_that_filled_every_slot_is_followed_by_another() -> None:
    schedule = idle()
    claim_turn(schedule, NOW, READY, got=8, asked=8)
    assert (schedule.may_have_more, schedule.wait_sec(NOW)) == (True, 0)
    claim_turn(schedule, NOW, EMPTY, got=3, asked=8)
    assert (schedule.may_have_more, schedule.wait_sec(NOW)) == (False, 10.0)


@pytest.mark.parametrize(("ahead", "is_pointless"), [(EMPTY, True), (READY, False)])
def test_a_poll_that_finds_nothing_ready_is_not_followed_by_a_claim(ahead: QueueState, is_pointless: bool) -> None:
    schedule = idle()
    schedule.begin_turn(NOW + 20)
    schedule.record_look(NOW + 20, ahead, PACE)
    assert schedule.is_claim_pointless is is_pointless


def test_what_was_promoted_may_be_ready() -> None:
    schedule = idle()
    schedule.begin_turn(NOW + 20)
    schedule.record_look(NOW + 20, MARKED, PACE)
    assert schedule.should_promote
    schedule.record_promotion(is_unfinished=True)
    assert (schedule.is_claim_pointless, schedule.should_promote) == (False, True)


@pytest.mark.parametrize(
    ("ahead", "empty_claims", "is_exhausted"),
    [(EMPTY, 1, True), (LATER, 1, True), (READY, 2, False), (READY, 3, True), (MARKED, 3, False)],
)
def test_when_a_burst_has_nothing_left(ahead: QueueState, empty_claims: int, is_exhausted: bool) -> None:
    schedule = idle()
    for turn in range(empty_claims):
        claim_turn(schedule, NOW + 100 * (turn + 1), READY)
    schedule.record_look(NOW + 900, ahead, PACE)
    assert schedule.is_exhausted is is_exhausted


@pytest.mark.parametrize(
    ("ahead", "claims", "polls"),
    [
        pytest.param(EMPTY, False, False, id="a heartbeat"),
        pytest.param(LATER, False, False, id="scheduled for later"),
        pytest.param(READY, True, False, id="ready"),
        pytest.param(DUE, True, True, id="due"),
        pytest.param(MARKED, True, False, id="marked"),
    ],
)
def test_a_change_of_the_database_leads_to_a_look_and_only_for_a_reason_to_a_claim(
    ahead: QueueState, claims: bool, polls: bool
) -> None:
    schedule = idle()
    now = NOW + 1
    schedule.record_change()
    assert schedule.wait_sec(now) == 0
    schedule.begin_turn(now)
    assert schedule.should_look
    schedule.record_look_after_change(now, ahead)
    assert not schedule.should_look
    assert (schedule.should_claim, schedule.should_poll) == (claims, polls)
    assert schedule.should_promote is ahead.has_dirty_targets


def test_jobs_that_are_not_for_us_are_not_claimed_again_with_every_change() -> None:
    schedule = idle()
    claim_turn(schedule, NOW + 1, READY, pace=PACE._replace(is_saturated=True))
    schedule.record_change()
    schedule.begin_turn(NOW + 1.02)
    schedule.record_look_after_change(NOW + 1.02, READY)
    assert not schedule.should_claim
    assert schedule.wait_sec(NOW + 1.02) == pytest.approx(0.23)
    schedule.begin_turn(NOW + 1.25)
    assert schedule.should_claim


def test_a_queue_that_was_empty_in_between_is_claimed_from_at_once() -> None:
    """Another worker took what this one could not get; the next job is for the first of them."""
    schedule = idle()
    claim_turn(schedule, NOW + 1, READY)
    for seconds, ahead, claims in ((1.02, READY, False), (1.04, EMPTY, False), (1.06, READY, True)):
        schedule.record_change()
        schedule.begin_turn(NOW + seconds)
        schedule.record_look_after_change(NOW + seconds, ahead)
        assert schedule.should_claim is claims


def test_unserved_jobs_are_looked_for_now_and_then() -> None:
    schedule = ClaimSchedule()
    schedule.record_unserved_check(NOW)
    assert schedule.unserved_check_at == NOW + 30


def test_a_worker_sleeps_until_a_rate_lets_the_next_job_start() -> None:
    schedule = idle()
    for turn in range(5):
        now = NOW + 100 * (turn + 1)
        schedule.begin_turn(now)
        schedule.record_look(now, READY, PACE)
        schedule.record_claim(requested=1, claimed=0, took_sec=0.01)
        schedule.plan_next_look(now, claimed=0, is_saturated=False, next_start_at=now + 4)
        assert schedule.wait_sec(now) == pytest.approx(4)
        assert not schedule.is_exhausted, "a burst waits, too"
    schedule.begin_turn(now + 4)
    assert schedule.should_claim


def test_a_rate_wakes_no_worker_while_nothing_is_ready() -> None:
    schedule = idle()
    schedule.begin_turn(NOW + 100)
    schedule.record_look(NOW + 100, EMPTY, PACE)
    schedule.record_claim(requested=1, claimed=0, took_sec=0.01)
    schedule.plan_next_look(NOW + 100, claimed=0, is_saturated=False, next_start_at=NOW + 101)
    assert schedule.wait_sec(NOW + 100) == pytest.approx(10)
