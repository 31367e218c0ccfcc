"""The `ctx.group` of a handler: what the members before its job have returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from pydantic_core import from_json

from jobs import db
from jobs.engine.sql.groups import find_place, read_results
from jobs.errors import ResultsUnavailable

RESULTS_BYTES = 2**20  # of all results together, as JSON text


@dataclass(frozen=True)
class MemberGroup:
    """The group of a job that runs. Results are read when they are asked for, on this thread's connection."""

    id: UUID
    job_id: UUID

    def results(self) -> list[Any]:
        """Return the results of the members before this one, in order; None for a member that did not complete.

        Raise ResultsUnavailable if the results have more than RESULTS_BYTES, or if this member waits for no other.
        """
        connection = db.connection()
        place = find_place(connection, self.job_id)
        if place is None or not place.waits_for_others:
            raise ResultsUnavailable(
                f"Job {self.job_id} does not wait for the other members of its group, so it has no results of them; "
                "only the final job of a parallel group and the members of a sequential one have."
            )
        size, rows = read_results(connection, self.id, before=place.group_index, max_bytes=RESULTS_BYTES)
        if size > RESULTS_BYTES:
            raise ResultsUnavailable(
                f"The results of group {self.id} have {size} bytes, {RESULTS_BYTES} are passed on at most; "
                "let its members return less, such as names of files or ids of rows."
            )
        results: list[Any] = [None] * place.group_index
        for index, text in rows:
            results[index] = from_json(text)
        return results

    async def aresults(self) -> list[Any]:
        """Return `results()`, for an async handler."""
        results: list[Any] = await sync_to_async(self.results)()
        return results
