"""One turn of a worker: record what finished, then claim into the free slots.

On PostgreSQL a plain turn is two statements in one pipeline: one round trip, one commit. The claim sees what the
finish released. Every other turn records first and commits, then claims in a transaction of its own: recording and
waiting for a limit in one transaction deadlocks with whoever pauses a limit and cancels a job.
On SQLite there is one writer and no order to keep: the whole turn is one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from jobs import db
from jobs.actors import Actor
from jobs.engine import ending
from jobs.engine.claim import Claimer, record_starts
from jobs.engine.ending import End, Verdict
from jobs.engine.sql.claim import Claim, parse_claims
from jobs.engine.sql.finish import finish_statement, parse_finished
from jobs.engine.sql.prepared import execute_together


class TurnResult(NamedTuple):
    verdicts: dict[UUID, Verdict]
    claims: list[Claim]


def finish_and_claim(
    claimer: Claimer, ends: Sequence[End], slots: Sequence[int], *, actor: Actor, lease_sec: float
) -> TurnResult:
    """Take a plain turn on PostgreSQL: for results of jobs without target and group, while no limit is in force."""
    rows = [ending.to_row(end) for end in ends]
    finished, claimed = execute_together(
        db.connection(),
        finish_statement(rows, ending.recorder(actor)),
        claimer.plain_statement(slots, lease_sec=lease_sec),
    )
    verdicts = ending.follow_up(parse_finished(finished), rows)
    claims = parse_claims(claimed)
    record_starts(claims)
    return TurnResult(verdicts, claims)
