"""Takes the guard out of one move, `cancel`: it looks without locking and writes whatever the job has become since.

The checker must notice. On SQLite the lock is the transaction that starts IMMEDIATE, so that goes too.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from jobs import db
from jobs.engine import lifecycle, transitions
from jobs.models import Job
from jobs.states import Status

_guarded = lifecycle.cancel


def take_the_guard_out() -> None:
    lifecycle.cancel = _cancel_unguarded


def _cancel_unguarded(*args: Any, **kwargs: Any) -> Job:
    on_sqlite = db.connection().vendor == "sqlite"
    no_transaction = patch.object(db, "atomic", nullcontext) if on_sqlite else nullcontext()
    no_lock = patch.object(lifecycle, "lock_job", transitions.get_job)
    no_guard = patch.object(transitions, "_update_if_unchanged", _write)
    with no_transaction, no_lock, no_guard:
        return _guarded(*args, **kwargs)


def _write(job: Job, verb: str, target: Status, **fields: Any) -> None:
    time.sleep(0.02)  # what it saw grows old
    Job.objects.filter(pk=job.pk).update(status=target, **fields)
