"""Begin an action on a group and kill this process after its first batch: `python -m tests.groups.killed_action`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

BATCH_SIZE = 4


def main(verb: str, group_id: str) -> None:
    import django

    django.setup()
    from jobs.engine import groups as engine
    from jobs.models import Job
    from jobs.services import groups
    from jobs.services import jobs as job_services
    from jobs.signals import events_committed

    def kill(**_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    engine.BATCH_SIZE = BATCH_SIZE
    events_committed.connect(kill)
    if verb == "cancel":
        groups.cancel(group_id)
    elif verb == "retry":
        groups.retry(group_id)
    else:
        job_services.cancel(Job.objects.get(group_id=group_id, group_index=0).pk)


if __name__ == "__main__":
    main(*sys.argv[1:])
