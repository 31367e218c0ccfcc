"""One turn of a worker: record what finished, then claim into the free slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from jobs import db
from jobs.actors import Actor
from jobs.engine import ending
from jobs.engine.claim import Claim, Claimer
from jobs.engine.ending import End, Verdict


class TurnResult(NamedTuple):
    verdicts: dict[UUID, Verdict]  # of the finished results that were given
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

    `promote` runs between the two, after the results are recorded, and says whether a claim may find anything. A
    `plain` turn has nothing to promote, and no result of a target or group. On SQLite a turn with results is one
    IMMEDIATE transaction; without results `promote` runs outside of any, so that a look alone takes no write lock.
    """
    if plain and results and slots:
        claim = claimer.parts(slots, lease_sec=lease_sec)
        done = ending.finish_and(claim, results, actor=actor) if claim is not None else None
        if done is not None:
            verdicts, rows = done
            claims = claimer.taken(rows)
            return TurnResult(verdicts, claims or claimer.claim(slots, lease_sec=lease_sec))
    with _single_transaction(results):
        verdicts = ending.finish(results, actor=actor) if results else {}
        is_worth_claiming = bool(slots) and (plain or promote())
        claims = claimer.claim(slots, lease_sec=lease_sec) if is_worth_claiming else []
    return TurnResult(verdicts, claims)


@contextmanager
def _single_transaction(results: Sequence[End]) -> Iterator[None]:
    """SQLite pays for each commit, and has one writer: there is no lock order to keep."""
    if not (results and db.is_sqlite()):
        yield
        return
    with db.atomic():
        yield
