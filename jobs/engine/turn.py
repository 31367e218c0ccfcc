"""One turn of a worker: record what finished, then claim into the free slots.

On PostgreSQL a plain turn is two statements in one pipeline: one round trip, one commit. The claim sees what the
finish released. Every other turn records first and commits, then promotes, then claims in a transaction of its own:
recording and waiting for a limit in one transaction deadlocks with a host that pauses a limit and cancels a job.
On SQLite there is one writer and no order to keep: a turn with results is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple
from uuid import UUID

from jobs import db
from jobs.actors import Actor
from jobs.engine import ending
from jobs.engine.claim import Claim, Claimer, record_starts
from jobs.engine.ending import End, Verdict
from jobs.engine.sql.turn import finish_and_claim


class TurnResult(NamedTuple):
    verdicts: dict[UUID, Verdict]  # of the results that were given
    claims: list[Claim]  # jobs claimed into the slots


def take_turn(
    claimer: Claimer,
    results: Sequence[End],
    slots: Sequence[int],
    *,
    actor: Actor,
    lease_sec: float,
    plain: bool,
    promote: Callable[[], bool] = lambda: True,
) -> TurnResult:
    """Record results and claim up to one job per slot; everything returned is committed.

    A `plain` turn has nothing to promote, and no result of a job with a target or a group. Otherwise `promote` runs
    between the two and tells whether a claim may find anything; without results it runs outside of any transaction, so
    that on SQLite a look alone takes no write lock.
    """
    if plain and results and slots and claimer.is_plain:
        done = take_plain_turn(claimer, results, slots, actor=actor, lease_sec=lease_sec)
        return done if done.claims else TurnResult(done.verdicts, claimer.claim(slots, lease_sec=lease_sec))
    with db.atomic_on_sqlite() if results else nullcontext():
        verdicts = ending.finish(results, actor=actor) if results else {}
        may_find_jobs = bool(slots) and (plain or promote())
        claims = claimer.claim(slots, lease_sec=lease_sec) if may_find_jobs else []
    return TurnResult(verdicts, claims)


def take_plain_turn(
    claimer: Claimer, results: Sequence[End], slots: Sequence[int], *, actor: Actor, lease_sec: float
) -> TurnResult:
    """Record results of jobs without target and group, and claim while no limit is in force, in one commit."""
    rows = [ending.to_row(end) for end in results]
    with db.atomic_on_sqlite() as connection:
        finished, claims = finish_and_claim(
            connection, rows, ending.recorder(actor), claimer.served, claimer.claimant(lease_sec), slots
        )
        verdicts = ending.follow_up(finished, rows)
        record_starts(claims)
    return TurnResult(verdicts, claims)
