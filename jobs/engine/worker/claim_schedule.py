"""When a worker looks for work again. Pure: the time is passed in (monotonic seconds), no database is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jobs.engine.sql.promote import QueueState

RETRY_LOOK_SEC = 0.05  # when to look again at jobs or targets whose rows another transaction had locked
BURST_EMPTY_LOOKS = 3  # empty claims after which a burst takes ready jobs as not its own
RECHECK_SEC = 1.8  # when to ask again about jobs that were not admitted
CHANGE_CLAIM_SEC = 0.25  # after an empty claim: how soon a change of the database may lead to the next one
UNSERVED_CHECK_SEC = 30.0  # how often to check whether jobs that this worker does not serve are in the queue


class Pace(NamedTuple):
    """What decides how soon to poll."""

    poll_sec: float
    is_notified: bool  # a listener hears of new work
    is_saturated: bool  # a limit had no room, and nobody announces when it has again
    is_denied: bool  # admission refused a job
    jitter: float = 1.0  # spreads the polls of many workers


class ClaimSchedule:
    """Whether to claim, promote or poll in this turn, and how long to wait for the next one.

    A turn is: `begin_turn`, then `looked` and `promoted` as far as asked for, then `claimed` and `plan_next_look`.
    """

    def __init__(self, *, checks_unserved: bool = True) -> None:
        self._may_have_more = True  # the queue may hold more than was claimed
        self._targets_changed = True  # a target may have a new head to make ready
        self._poll_at = 0.0  # look at everything, with or without a wake-up
        self._due_at = 0.0  # when the next scheduled job is due
        self._queue_empty = False  # as of the last look
        self._empty_claims = 0  # claims in a row that got nothing of what is ready
        self._change_claim_at = 0.0  # no claim because of a change of the database before
        self._last_claim_sec = 0.0
        self._look_due = False  # another connection has committed
        self._is_polling = False  # in this turn
        self.unserved_check_at = 0.0 if checks_unserved else float("inf")

    # ------------------------------------------------------------------ what happened

    def wake(self, *, targets_changed: bool = True) -> None:
        """Note that something may have become ready."""
        self._may_have_more, self._empty_claims = True, 0
        self._targets_changed |= targets_changed

    def free_slot(self) -> None:
        """Note that a job has left its slot."""
        self._may_have_more = True

    def change_targets(self) -> None:
        """Note that targets may have new heads: before the promoter runs, or it does not."""
        self._targets_changed = True

    def fail_turn(self) -> None:
        """Note that the last turn failed: it may have missed a wake-up, and what it promoted is rolled back."""
        self._may_have_more = self._targets_changed = True

    def note_change(self) -> None:
        """Note that another connection has committed something: one look will say whether it matters."""
        self._look_due = True

    def begin_turn(self, now: float) -> None:
        self._is_polling = now >= min(self._poll_at, self._due_at)

    def looked(self, now: float, ahead: QueueState, pace: Pace) -> None:
        """Plan the next poll from a look ahead."""
        pause = pace.poll_sec * (1 if pace.is_saturated or not pace.is_notified else 10)
        if pace.is_denied:  # asking about many takes long, and on SQLite it keeps everybody waiting
            pause = max(min(pause, RECHECK_SEC), 10 * self._last_claim_sec)
        self._poll_at = now + pause * pace.jitter
        self._apply(now, ahead)

    def looked_after_change(self, now: float, ahead: QueueState) -> None:
        """Claim in this turn if the change made something ready, due or marked; spare what the last claims refused."""
        self._apply(now, ahead)
        if ahead.marked or (ahead.ready and now >= self._change_claim_at):
            self._may_have_more = True
        elif ahead.ready:
            self._poll_at = min(self._poll_at, self._change_claim_at)
        self._is_polling = now >= min(self._poll_at, self._due_at)

    def promoted(self, *, is_unfinished: bool) -> None:
        self._targets_changed = is_unfinished
        self._queue_empty = False

    def claimed(self, *, asked: int, got: int, took_sec: float) -> bool:
        """Note what a claim got; return whether to look why it got less than it asked for."""
        self._last_claim_sec = took_sec
        self._may_have_more = got == asked
        return not self._may_have_more and not self._is_polling

    def plan_next_look(self, now: float, *, got: int, is_saturated: bool) -> None:
        """After a claim: look again soon at ready jobs that were not for us, another transaction may have had them."""
        if not self._may_have_more:
            self._empty_claims = 0 if got or self._queue_empty else self._empty_claims + 1
            if self._empty_claims:
                self._change_claim_at = now + max(CHANGE_CLAIM_SEC, 10 * self._last_claim_sec)
            if not self._queue_empty and not is_saturated:
                self._poll_at = min(self._poll_at, now + RETRY_LOOK_SEC * 2 ** min(self._empty_claims, 16))
        if self._targets_changed:
            self.look_soon(now)

    def look_soon(self, now: float) -> None:
        self._poll_at = now + RETRY_LOOK_SEC

    def checked_unserved(self, now: float) -> None:
        self.unserved_check_at = now + UNSERVED_CHECK_SEC

    # ------------------------------------------------------------------ what to do

    def wait_sec(self, now: float) -> float:
        """How long to wait for an event before the next turn, while slots are free."""
        if self._may_have_more or self._look_due:
            return 0.0
        return max(min(self._poll_at, self._due_at) - now, 0.0)

    @property
    def may_have_more(self) -> bool:
        return self._may_have_more

    @property
    def should_look(self) -> bool:
        """A change of the database was noticed, and nothing else asks for a claim."""
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
        """Nothing has to be looked at or promoted before a claim."""
        return not self._targets_changed and not self._is_polling

    @property
    def is_claim_pointless(self) -> bool:
        """This turn has looked, and nothing is ready."""
        return self._is_polling and self._queue_empty

    @property
    def is_exhausted(self) -> bool:
        """Nothing is left for a burst: the queue is empty, or what is ready was refused to several claims."""
        return not self._targets_changed and (self._queue_empty or self._empty_claims >= BURST_EMPTY_LOOKS)

    def _apply(self, now: float, ahead: QueueState) -> None:
        self._look_due = False
        self._targets_changed |= ahead.marked
        self._queue_empty = not ahead.ready
        if self._queue_empty:
            self._change_claim_at = 0.0
        self._due_at = self._poll_at if ahead.due_sec is None else now + max(ahead.due_sec, 0.0)
