"""Send `task_finished` for the ends that no handler reports: cancelled or skipped before the start, out of time, left
behind by a worker that vanished. Sent after their commit, by the process that recorded them.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from jobs import signals
from jobs.contrib.tasks import handlers
from jobs.contrib.tasks.compat import task_finished
from jobs.states import Status

REPORTED = frozenset({Status.FAILED, Status.CANCELLED, Status.SKIPPED})


def connect() -> None:
    signals.job_finished.connect(send_task_finished, dispatch_uid="jobs.contrib.tasks")


def send_task_finished(*, job_id: UUID, job_type: str, status: str, retried_by: UUID | None, **_facts: Any) -> None:
    """Send the signal of `django.tasks`, unless the handler's own thread has sent it or a retry follows."""
    if status not in REPORTED or retried_by is not None or job_type not in handlers.job_types():
        return
    from jobs.contrib.tasks import results

    chain = results.chain_of(job_id)
    if chain and not results.was_told(chain[-1]):
        result = results.of(chain)
        task_finished.send_robust(type(result.task.get_backend()), task_result=result)
