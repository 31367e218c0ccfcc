"""`task_finished` for the ends that no handler tells: cancelled or skipped before the start, out of time, left behind
by a worker that vanished. Told when they are committed, by the process that recorded them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from django.db import transaction

from jobs import db, hooks
from jobs.contrib.tasks import handlers
from jobs.contrib.tasks.compat import task_finished
from jobs.states import EventKind

ENDS = frozenset({EventKind.FAILED, EventKind.CANCELLED, EventKind.SKIPPED})


class _Failures:
    """The one busy statement whose moves we want to hear of ends jobs as FAILED. See `jobs.hooks.Interest`."""

    def expected(self, *kinds: EventKind) -> bool:
        return EventKind.FAILED in kinds

    look = expected

    def unwanted(self, *kinds: EventKind) -> str:
        return ""

    def along_ends(self) -> None:
        return None

    def along_claims(self) -> None:
        return None


def listen() -> None:
    hooks.listen(hear, required=True, interest=_Failures())


def hear(events: Sequence[hooks.Event]) -> None:
    ended = [each.job_id for each in events if isinstance(each, hooks.Moved) and _is_an_end(each)]
    if ended:
        transaction.on_commit(partial(_tell, ended), using=db.alias(), robust=True)


def _is_an_end(move: hooks.Moved) -> bool:
    return move.kind in ENDS and move.retried_by is None


def _tell(ended: Sequence[UUID]) -> None:
    from jobs.contrib.tasks import results
    from jobs.engine.moves import jobs

    for job_id in jobs().filter(pk__in=ended, job_type__in=handlers.job_types()).values_list("pk", flat=True):
        chain = results.chain_of(job_id)
        if chain and not results.was_told(chain[-1]):
            result = results.of(chain)
            task_finished.send_robust(type(result.task.get_backend()), task_result=result)
