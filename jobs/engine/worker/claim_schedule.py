"""Decide when a worker claims, promotes and polls. Pure: times are passed in (monotonic seconds), no database."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jobs.engine.sql.promote import QueueState

RETRY_LOOK_SEC = 0.05  # when to look again at jobs or targets whose rows another transaction had locked
BURST_EMPTY_LOOKS = 3  # empty claims after which a burst counts the ready jobs as not claimable
RECHECK_SEC = 1.8  # when to claim again after admission refused jobs
CHANGE_CLAIM_SEC = 0.25  # after an empty claim: how soon a change of the database may lead to the next one
UNSERVED_CHECK_SEC = 30.0  # how often to check whether jobs that this worker does not serve are in the queue


class Pace(NamedTuple):
    """The facts that decide how soon to poll."""

    poll_sec: float
    is_notified: bool  # a listener gets notifications of new work
    is_saturated: bool  # a limit had no room, and no notification tells when it has again
    is_denied: bool  # admission refused a job
    jitter: float = 1.0  # spreads the polls of many workers


class ClaimSchedule:
    """Decides whether to claim, promote or poll in this turn, and how long to wait for the next one.

    A turn is: `begin_turn`, then `record_look` and `record_promotion` as far as the properties ask for them, then
    `record_claim` and `plan_next_look`.
    """

    def __init__(self, *, checks_unserved: bool = True) -> None:
        self._may_have_more = True  # the queue may hold more than was claimed
        self._targets_changed = True  # a target may have a new head to make ready
        self._poll_at = 0.0  # when to look at the queue, with or without a wake-up
        self._due_at = 0.0  # when the next scheduled job is due
        self._next_start_at = math.inf  # when a rate lets the next of the ready jobs start
        self._queue_empty = False  # as of the last look
        self._empty_claims = 0  # consecutive claims that got none of the ready jobs
        self._change_claim_at = 0.0  # a change of the database leads to no claim before
        self._last_claim_sec = 0.0
        self._look_due = False  # another connection has committed
        self._is_polling = False  # in this turn
        self.unserved_check_at = 0.0 if checks_unserved else float("inf")

    # ------------------------------------------------------------------ record events

    def wake(self, *, targets_changed: bool = True) -> None:
        """Record that jobs may have become ready."""
        self._may_have_more, self._empty_claims = True, 0
        self._targets_changed |= targets_changed

    def record_free_slot(self) -> None:
        """Record that a slot has become free."""
        self._may_have_more = True

    def record_changed_targets(self) -> None:
        """Record that targets may have new heads. To be called before the promoter runs, which else does not."""
        self._targets_changed = True

    def record_failed_turn(self) -> None:
        """Record that the last turn failed: it may have missed a wake-up, and its promotions are rolled back."""
        self._may_have_more = self._targets_changed = True

    def record_change(self) -> None:
        """Record that another connection has committed: one look at the queue tells whether it matters."""
        self._look_due = True

    def begin_turn(self, now: float) -> None:
        self._is_polling = now >= self._look_at

    def record_look(self, now: float, state: QueueState, pace: Pace) -> None:
        """Record the state of the queue, and plan the next poll."""
        pause = pace.poll_sec * (1 if pace.is_saturated or not pace.is_notified else 10)
        if pace.is_denied:  # asking about many jobs takes long, and on SQLite other writers wait meanwhile
            pause = max(min(pause, RECHECK_SEC), 10 * self._last_claim_sec)
        self._poll_at = now + pause * pace.jitter
        self._apply(now, state)

    def record_look_after_change(self, now: float, state: QueueState) -> None:
        """Claim in this turn if the change made jobs ready or due, or marked a target; not for jobs just refused."""
        self._apply(now, state)
        if state.has_dirty_targets or (state.has_ready_jobs and now >= self._change_claim_at):
            self._may_have_more = True
        elif state.has_ready_jobs:
            self._poll_at = min(self._poll_at, self._change_claim_at)
        self._is_polling = now >= self._look_at

    def record_promotion(self, *, is_unfinished: bool) -> None:
        self._targets_changed = is_unfinished
        self._queue_empty = False

    def record_claim(self, *, requested: int, claimed: int, took_sec: float) -> bool:
        """Record how many jobs a claim got; return whether to look why it got fewer than requested."""
        self._last_claim_sec = took_sec
        self._may_have_more = claimed == requested
        return not self._may_have_more and not self._is_polling

    def plan_next_look(
        self, now: float, *, claimed: int, is_saturated: bool, next_start_at: float | None = None
    ) -> None:
        """Plan the next look after a claim: soon, if ready jobs were left; another transaction may have locked them.

        If a rate prevented starts, the next look is at `next_start_at`.
        """
        has_ready_jobs = not self._may_have_more and not self._queue_empty
        self._next_start_at = next_start_at if has_ready_jobs and next_start_at is not None else math.inf
        is_saturated |= next_start_at is not None
        if not self._may_have_more:
            self._empty_claims = 0 if claimed or self._queue_empty else self._empty_claims + 1
            if self._empty_claims:
                self._change_claim_at = now + max(CHANGE_CLAIM_SEC, 10 * self._last_claim_sec)
            if not self._queue_empty and not is_saturated:
                self._poll_at = min(self._poll_at, now + RETRY_LOOK_SEC * 2 ** min(self._empty_claims, 16))
        if self._targets_changed:
            self.look_soon(now)

    def look_soon(self, now: float) -> None:
        self._poll_at = now + RETRY_LOOK_SEC

    def record_unserved_check(self, now: float) -> None:
        self.unserved_check_at = now + UNSERVED_CHECK_SEC

    # ------------------------------------------------------------------ decide

    def wait_sec(self, now: float) -> float:
        """Return how many seconds to wait for an event before the next turn, while slots are free."""
        if self._may_have_more or self._look_due:
            return 0.0
        return max(self._look_at - now, 0.0)

    @property
    def may_have_more(self) -> bool:
        return self._may_have_more

    @property
    def should_look(self) -> bool:
        """Return whether a change of the database was recorded, and nothing else asks for a claim."""
        return self._look_due and not self.should_claim

    @property
    def should_claim(self) -> bool:
        return self._may_have_more or self._is_polling

    @property
    def should_poll(self) -> bool:
        return self._is_polling

    @property
    def should_promote(self) -> bool:
        return self._targets_changed

    @property
    def is_plain(self) -> bool:
        """Return whether a claim needs neither a look nor a promotion before it."""
        return not self._targets_changed and not self._is_polling

    @property
    def is_claim_pointless(self) -> bool:
        """Return whether this turn has looked, and no job is ready."""
        return self._is_polling and self._queue_empty

    @property
    def is_exhausted(self) -> bool:
        """Return whether a burst is done: the queue is empty, or several claims got none of the ready jobs.

        Jobs that a rate delays are waited for.
        """
        is_stuck = self._empty_claims >= BURST_EMPTY_LOOKS and not self.waits_for_rate
        return not self._targets_changed and (self._queue_empty or is_stuck)

    @property
    def waits_for_rate(self) -> bool:
        """Return whether it is known when a rate lets the next of the ready jobs start."""
        return self._next_start_at < math.inf

    @property
    def _look_at(self) -> float:
        return min(self._poll_at, self._due_at, self._next_start_at)

    def _apply(self, now: float, state: QueueState) -> None:
        self._look_due = False
        self._targets_changed |= state.has_dirty_targets
        self._queue_empty = not state.has_ready_jobs
        if self._queue_empty:
            self._change_claim_at = 0.0
        self._due_at = self._poll_at if state.due_sec is None else now + max(state.due_sec, 0.0)
