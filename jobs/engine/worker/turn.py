"""One turn of the loop: record results, promote, claim into the free slots, and plan the next look.

On PostgreSQL a plain turn is two statements in one pipeline: one round trip, one commit; the claim sees the effects of
the finish. Every other turn records first and commits, then promotes, then claims in a transaction of its own:
recording and waiting for a limit in one transaction deadlocks with a host that pauses a limit and cancels a job.
On SQLite there is one writer, and no lock order to keep: a turn with results is one transaction.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from jobs import db, notifications
from jobs.actors import Actor
from jobs.conf import conf
from jobs.engine import finish, promoter
from jobs.engine.claim import Claim, Claimer, has_unserved_jobs, record_starts
from jobs.engine.finish import FinishStatus, JobResult
from jobs.engine.sql.claim import LeaseRequest
from jobs.engine.sql.finish import finish_and_claim
from jobs.engine.worker.claim_schedule import ClaimSchedule, Pace
from jobs.engine.worker.heartbeat import lease_margin_sec
from jobs.engine.worker.recorder import Recorder, log_jobs
from jobs.engine.worker.recycling import Recycling
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs, make_context
from jobs.models import Job

logger = logging.getLogger("jobs.engine.worker")


class TurnRunner:
    """Takes turns: knows the claimer, the schedule, the running jobs and the recorder of one worker."""

    def __init__(
        self,
        claimer: Claimer,
        schedule: ClaimSchedule,
        running: RunningJobs,
        recorder: Recorder,
        recycling: Recycling | None,
        *,
        actor: Actor,
        start: Callable[[RunningJob], None],
        on_write: Callable[[], None],
        is_notified: Callable[[], bool],
    ) -> None:
        self.claimer = claimer
        self.schedule = schedule
        self.running = running
        self.recorder = recorder
        self.recycling = recycling
        self.actor = actor
        self.start = start
        self.on_write = on_write
        self.is_notified = is_notified
        self._lease_sec = conf.LEASE_SEC - lease_margin_sec()  # how long a handler may run without a heartbeat
        self._unanswered_until = 0.0  # claims whose reply was lost may appear until then
        self._unanswered_check_at = 0.0  # when to look for them again
        self._promoted = 0  # jobs that became ready in this turn

    def run(self, *, may_claim: bool) -> None:
        """Take one turn. Handlers start, and slots are freed, after the commit was answered."""
        if self._unanswered_check_at <= time.monotonic() < self._unanswered_until:
            self._hand_back_unanswered()
        if any(job.claim.target is not None for job in self.recorder.returned):
            self.schedule.record_changed_targets()  # the next job of its target may become ready
        finished = self.recorder.collect_results()
        free = self.running.free_slots + len(finished) if may_claim else 0
        if self.recycling is not None:
            free = self.recycling.limit_claims(free)
        self.schedule.begin_turn(time.monotonic())
        if free and not finished and self.schedule.should_look:
            state = promoter.read_queue_state()
            self.schedule.record_look_after_change(time.monotonic(), state)
        if not finished and not (free and self.schedule.should_claim):
            return
        sent_at = time.monotonic()
        if sent_at >= self.schedule.unserved_check_at:
            self._check_unserved_jobs(sent_at)
        slots = self.running.pick_slots(free)
        self._promoted = 0
        statuses, claims = take_turn(
            self.claimer,
            [result for _, result in finished],
            slots,
            actor=self.actor,
            lease_sec=conf.LEASE_SEC,
            plain=self.schedule.is_plain and all(job.claim.group_id is None for job, _ in finished),
            promote=self._promote,
        )
        answered_at = time.monotonic()
        self.recorder.release_slots(finished, statuses)
        self._start_handlers(claims, sent_at)
        if self.recycling is not None:
            self.recycling.record_claims(len(claims))
        if not slots and any(job.claim.target is not None for job, _ in finished):
            notifications.notify(notifications.LANE)  # other workers promote: this one claims nothing
        elif self._promoted and self._promoted > sum(claim.target is not None for claim in claims):
            notifications.notify(notifications.READY)  # other workers claim what this one has not
        if slots:
            if self.schedule.record_claim(requested=len(slots), claimed=len(claims), took_sec=answered_at - sent_at):
                self._look()
            self.schedule.plan_next_look(
                time.monotonic(),
                claimed=len(claims),
                is_saturated=self.claimer.is_saturated,
                next_start_at=self.claimer.next_start_at,
            )

    def recover_claims(self) -> None:
        """Hand back jobs that a failed turn may have claimed. Its reply was lost, so no slot runs them.

        The server may commit such a claim after this look, so look again, as often as leases are renewed, until its
        lease is over.
        """
        self.schedule.record_failed_turn()
        self._unanswered_until = time.monotonic() + conf.LEASE_SEC
        self._hand_back_unanswered()

    def limit_wait(self, seconds: float) -> float:
        """Shorten a wait for events, so that claims whose reply was lost are looked for in time."""
        now = time.monotonic()
        return min(seconds, max(self._unanswered_check_at - now, 0.0)) if now < self._unanswered_until else seconds

    def is_exhausted(self) -> bool:
        """Return whether a burst has no job left. Jobs locked by another transaction may be ready in a moment."""
        self._look()
        if self.schedule.is_exhausted:
            return True
        if not self.schedule.waits_for_rate:
            self.schedule.look_soon(time.monotonic())
        return False

    def _hand_back_unanswered(self) -> None:
        own_jobs = Job.objects.running().filter(lease_owner__startswith=f"{self.claimer.process_key}#")
        for job in own_jobs.exclude(pk__in=self.running.ids):
            assert job.lease_token is not None
            finish.hand_back(job.pk, job.lease_token, actor=self.actor, reason="the reply to its claim was lost")
            self.schedule.wake()
        self._unanswered_check_at = time.monotonic() + conf.HEARTBEAT_SEC

    def _promote(self) -> bool:
        """Make due jobs and next jobs of targets ready, as far as needed. Return whether a claim may find a job."""
        if self.schedule.should_poll and self._look():
            if promoter.promote_due():
                self.schedule.record_changed_targets()
            self._look()
        if self.schedule.should_promote:
            promotion = promoter.promote_round()
            self._promoted += promotion.ready
            self.schedule.record_promotion(is_unfinished=promotion.is_unfinished)
        return not self.schedule.is_claim_pointless

    def _look(self) -> bool:
        """Read the state of the queue; return whether a scheduled job is due."""
        now = time.monotonic()
        state = promoter.read_queue_state()
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 — spreads the polls of many workers
        saturated, denied = self.claimer.is_saturated, self.claimer.has_denied
        self.schedule.record_look(now, state, Pace(conf.POLL_SEC, self.is_notified(), saturated, denied, jitter))
        return state.due_sec is not None and state.due_sec <= 0

    def _check_unserved_jobs(self, now: float) -> None:
        """Check for jobs that this worker does not serve: then claims must not scan past each of them."""
        self.schedule.record_unserved_check(now)
        served_jobs = self.claimer.served_jobs
        self.claimer.set_served_jobs(replace(served_jobs, skip_unserved=has_unserved_jobs(served_jobs)))

    def _start_handlers(self, claims: Sequence[Claim], sent_at: float) -> None:
        deadline = sent_at + self._lease_sec
        jobs = [RunningJob(claim, make_context(claim, self.on_write), deadline) for claim in claims]
        if logger.isEnabledFor(logging.INFO):
            log_jobs(jobs, "claimed %d jobs: %s", "claimed job %s")
        for job in jobs:
            self.running.add(job)
            self.start(job)


class TurnResult(NamedTuple):
    statuses: dict[UUID, FinishStatus]  # of the results, by job id
    claims: list[Claim]  # jobs claimed into the slots


def take_turn(
    claimer: Claimer,
    results: Sequence[JobResult],
    slots: Sequence[int],
    *,
    actor: Actor,
    lease_sec: float,
    plain: bool,
    promote: Callable[[], bool] = lambda: True,
) -> TurnResult:
    """Record results and claim up to one job per slot; everything returned is committed.

    A `plain` turn has nothing to promote, and no result of a job with a target or a group. Otherwise `promote` runs
    between the two and returns whether a claim may find a job; without results it runs outside of any transaction, so
    that on SQLite a look alone takes no write lock.
    """
    if plain and results and slots and claimer.is_plain:
        plain_turn = take_plain_turn(claimer, results, slots, actor=actor, lease_sec=lease_sec)
        if plain_turn.claims:
            return plain_turn
        return TurnResult(plain_turn.statuses, claimer.claim(slots, lease_sec=lease_sec))
    with db.atomic_on_sqlite() if results else nullcontext():
        statuses = finish.finish(results, actor=actor) if results else {}
        may_find_jobs = bool(slots) and (plain or promote())
        claims = claimer.claim(slots, lease_sec=lease_sec) if may_find_jobs else []
    return TurnResult(statuses, claims)


def take_plain_turn(
    claimer: Claimer, results: Sequence[JobResult], slots: Sequence[int], *, actor: Actor, lease_sec: float
) -> TurnResult:
    """Record results of jobs without target and group, and claim while no limit is in force, in one commit."""
    rows = [finish.to_result_row(result) for result in results]
    context = finish.build_finish_context(actor)
    lease_request = LeaseRequest(claimer.worker, claimer.process_key, lease_sec)
    with db.atomic_on_sqlite() as connection:
        finished, claims = finish_and_claim(connection, rows, context, claimer.served_params, lease_request, slots)
        statuses = finish.handle_finished(finished, rows)
        record_starts(claims)
    return TurnResult(statuses, claims)
