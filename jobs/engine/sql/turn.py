"""Record results and claim the next jobs in one commit: FINISH and CLAIM_NEXT as they are, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.engine.sql import is_sqlite
from jobs.engine.sql.claim import Claim, Claimant, Served, claim_next, claim_next_statement, parse_claims
from jobs.engine.sql.finish import FinishedRow, Recorder, ResultRow, finish_jobs, finish_statement, parse_finished
from jobs.engine.sql.prepared import execute_together


def finish_and_claim(
    connection: Any,
    results: Sequence[ResultRow],
    recorder: Recorder,
    served: Served,
    claimant: Claimant,
    slots: Sequence[int],
) -> tuple[list[FinishedRow], list[Claim]]:
    """Run both statements: on PostgreSQL in one round trip, on SQLite in the caller's transaction."""
    if is_sqlite(connection):
        return finish_jobs(connection, results, recorder), claim_next(connection, served, claimant, slots)
    finished, claimed = execute_together(
        connection, finish_statement(results, recorder), claim_next_statement(served, claimant, slots)
    )
    return parse_finished(finished), parse_claims(claimed)
