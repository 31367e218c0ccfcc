"""What a worker process can be made to do wrong (SABOTAGE=one,two): the judges of the tests must notice.

Only children that a test starts are ever told; see `tests.sample_app.apps`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.db.backends.signals import connection_created

LATE_SEC = 20.0


def begin(names: Sequence[str]) -> None:
    for name in names:
        KINDS[name]()


def blind() -> None:
    """Never notices that a lease is lost: only the database can still refuse what it writes."""
    from jobs.engine.worker.running_jobs import RunningJob

    RunningJob.mark_lost = lambda self: None  # type: ignore[method-assign]


def tokenless() -> None:
    """Writes by id alone."""
    connection_created.connect(_take_tokens_out, dispatch_uid="tokenless", weak=False)


def unlocked_limits() -> None:
    """Counts what is active without locking the limits first."""
    from jobs.engine.selection import limits

    def read_unlocked(connection: Any, *, all_rows: bool, lock: bool) -> Any:
        found = read(connection, all_rows=all_rows, lock=False)
        if lock:
            time.sleep(0.05)  # what it counted grows old
        return found

    read, limits.read_limits = limits.read_limits, read_unlocked


def backwards() -> None:
    """Lets the last of each lane go first."""
    connection_created.connect(_turn_lanes_around, dispatch_uid="backwards", weak=False)


def breathless() -> None:
    """Stops its heartbeats with the first signal, as if nothing were running any more."""
    from jobs.engine.worker import WorkerLoop

    orderly = WorkerLoop.stop

    def stop(self: WorkerLoop, *args: Any) -> None:
        self.heartbeat.end()
        self.watchdog.end()
        orderly(self, *args)

    WorkerLoop.stop = stop  # type: ignore[method-assign]


def latecomer() -> None:
    """The server that forks the processes of jobs is very long in coming."""
    if sys.argv[0] == "-c":
        time.sleep(LATE_SEC)


def unlocked_groups() -> None:
    """Ends members of groups in a transaction, but without locking the group first."""
    from jobs import db
    from jobs.engine import finish as ending
    from jobs.engine import groups

    def finish(ends: Sequence[Any], *, actor: Any) -> Any:
        with db.atomic():
            return finish_locked([replace(end, group_id=None) for end in ends], actor=actor)

    def settle(job: Any) -> None:
        settled(job)
        _meet(job)  # both have looked, neither has committed: nobody has seen both ends

    finish_locked, ending.finish = ending.finish, finish
    settled, groups.on_member_finished = groups.on_member_finished, settle


def _meet(job: Any) -> None:
    """Wait, in the middle of its end, for the other member of the pair to be in the middle of its own."""
    from tests.sample_app.ledger import VARIABLE

    beside = f"{os.environ[VARIABLE]}-{job.group_id}"
    mine, other = Path(f"{beside}-{job.group_index}"), Path(f"{beside}-{1 - job.group_index}")
    mine.touch()
    deadline = time.monotonic() + 2
    while not other.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


def hear_groups() -> None:
    """Nothing wrong: the end of each group is noted in the ledger once it is committed."""
    from jobs.signals import group_finished
    from tests.sample_app.ledger import record

    def hear(*, group_id: Any, **facts: Any) -> None:
        record("group.finished", group=str(group_id), round=facts["round"])

    group_finished.connect(hear, weak=False)


def forgetful() -> None:
    """Does not know a remote worker's own start again when it is repeated."""
    from uuid import uuid4

    from jobs.engine.remote.starts import RemoteSlot

    RemoteSlot.owner = property(lambda self: f"r:{self.api_token}:{self.worker}-{uuid4()}#{self.slot}")  # type: ignore[assignment]


def deaf_to_reservations() -> None:
    """Counts direct calls that run, and takes the next slot from those that wait."""
    from jobs.engine.selection import limits

    def without_those_who_wait(**how: Any) -> Any:
        return survey(**how)._replace(waiting=[])

    survey, limits.read_usage = limits.read_usage, without_those_who_wait


def unlocked_admission() -> None:
    """Counts what is used without locking the snapshot first."""
    from jobs.engine.maintenance import system_load
    from jobs.engine.selection import admission
    from jobs.models import SystemSnapshot

    def read_unlocked() -> Any:
        from django.db.models.functions import Now

        SystemSnapshot.objects.get_or_create(pk=SystemSnapshot.SINGLETON_ID)
        return SystemSnapshot.objects.annotate(now=Now()).get()

    def read_slowly() -> Any:
        found = costs()
        time.sleep(0.1)  # what it counted grows old, also on a machine with other things to do
        return found

    system_load.lock_row = read_unlocked
    costs, admission.count_costs = admission.count_costs, read_slowly


def unguarded_isolation() -> None:
    """Leaves every transaction at the isolation level that the host asks for, and takes its time under the lock."""
    from jobs import db
    from jobs.engine.selection import limits
    from jobs.engine.worker import worker

    def read_slowly(connection: Any, *, all_rows: bool, lock: bool) -> Any:
        found = read(connection, all_rows=all_rows, lock=lock)
        if lock:
            time.sleep(0.05)  # others come to wait for the lock; whoever counts after it loses nothing by that
        return found

    worker.set_read_committed = lambda: None
    db.use_own_connection = lambda: None
    db._is_read_committed = lambda using: True
    read, limits.read_limits = limits.read_limits, read_slowly


def one_transaction() -> None:
    """Records results and waits for the limits in the same transaction."""
    from jobs import db
    from jobs.engine.worker import turn

    def take_turn(*args: Any, **kwargs: Any) -> Any:
        with db.atomic():
            return take(*args, **kwargs)

    take, turn.take_turn = turn.take_turn, take_turn


def keep_unknown_claims() -> None:
    """Does not look, after a failed turn, for jobs that it may have claimed."""
    from jobs.engine.worker.turn import TurnRunner

    TurnRunner.recover_claims = lambda self: self.schedule.record_failed_turn()  # type: ignore[method-assign]


KINDS: dict[str, Callable[[], None]] = {
    "blind": blind,
    "tokenless": tokenless,
    "unlocked_limits": unlocked_limits,
    "backwards": backwards,
    "breathless": breathless,
    "latecomer": latecomer,
    "unlocked_groups": unlocked_groups,
    "hear_groups": hear_groups,
    "deaf_to_reservations": deaf_to_reservations,
    "unlocked_admission": unlocked_admission,
    "forgetful": forgetful,
    "unguarded_isolation": unguarded_isolation,
    "one_transaction": one_transaction,
    "keep_unknown_claims": keep_unknown_claims,
}

# The same number of parameters, and always true.
TOKENS = (
    (re.compile(r'"jobscheduler_job"\."lease_token" = (%s\S*)'), r"\1 IS NOT NULL"),
    (re.compile(r"\blease_token = ANY\((%\(\w+\)s::uuid\[\])\)"), r"\1 IS NOT NULL"),
    (re.compile(r"g\.token = j\.lease_token"), r"g.token IS NOT NULL"),
    (re.compile(r"j\.lease_token = (json_extract\(g\.value, '\$\[1\]'\))"), r"\1 IS NOT NULL"),
    (re.compile(r"\blease_token IN (\(SELECT json_extract\(value, '\$\[1\]'\) FROM json_each\(%s\)\))"), r"EXISTS \1"),
)


def _turn_lanes_around(*, connection: Any, **_: Any) -> None:
    connection.execute_wrappers.append(_last_first)


def _last_first(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    forwards = "ORDER BY b.priority DESC, b.position, b.created_at, b.id"
    backwards = "ORDER BY b.priority DESC, b.position DESC, b.created_at DESC, b.id DESC"
    return execute(sql.replace(forwards, backwards) if isinstance(sql, str) else sql, params, many, context)


def _take_tokens_out(*, connection: Any, **_: Any) -> None:
    connection.execute_wrappers.append(_without_tokens)


def _without_tokens(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    if isinstance(sql, str) and "lease_token" in sql and not sql.lstrip().startswith("SELECT e.job_id"):
        for pattern, always in TOKENS:
            sql = pattern.sub(always, sql)
    return execute(sql, params, many, context)
