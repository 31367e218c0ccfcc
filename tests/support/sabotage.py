"""Faults that a test switches on in a worker process (SABOTAGE=one,two); the checks of the test must notice them.

Only processes that a test starts read the variable; see `tests.sample_app.apps`.
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


def switch_on(names: Sequence[str]) -> None:
    for name in names:
        KINDS[name]()


def ignore_lost_leases() -> None:
    """Ignore lost leases, so that only the database can still reject the results."""
    from jobs.engine.worker.running_jobs import RunningJob

    assert callable(RunningJob.mark_lost)
    RunningJob.mark_lost = lambda self: None  # type: ignore[method-assign]


def write_without_tokens() -> None:
    """Write by the id of the job alone, without its lease token."""
    connection_created.connect(_drop_tokens, dispatch_uid="write_without_tokens", weak=False)


def skip_limit_locks() -> None:
    """Count active jobs without locking the limits first."""
    from jobs.engine.selection import limits

    def read_unlocked(connection: Any, *, all_rows: bool, lock: bool) -> Any:
        found = read(connection, all_rows=all_rows, lock=False)
        if lock:
            time.sleep(0.05)  # the counts become outdated
        return found

    read, limits.read_limits = limits.read_limits, read_unlocked


def reverse_targets() -> None:
    """Make the last job of each target ready first."""
    connection_created.connect(_reverse_order, dispatch_uid="reverse_targets", weak=False)


def stop_heartbeats_early() -> None:
    """Stop the heartbeats with the first signal, although jobs are still running."""
    from jobs.engine.worker import WorkerLoop

    original_stop = WorkerLoop.stop

    def stop(self: WorkerLoop, *args: Any) -> None:
        self.heartbeat.end()
        self.watchdog.end()
        original_stop(self, *args)

    WorkerLoop.stop = stop  # type: ignore[method-assign]


def delay_forkserver() -> None:
    """Start the server that forks the processes of jobs very late."""
    if sys.argv[0] == "-c":
        time.sleep(LATE_SEC)


def skip_group_locks() -> None:
    """Record results of group members in a transaction, but without locking the group first."""
    from jobs import db
    from jobs.engine import finish as finish_module
    from jobs.engine import groups

    def finish(ends: Sequence[Any], *, actor: Any) -> Any:
        with db.atomic():
            return finish_locked([replace(end, group_id=None) for end in ends], actor=actor)

    def on_member_finished(job: Any) -> None:
        finished_jobs[job.group_id] = job
        original(job)

    def has_live_members(group: Any, **other_than: Any) -> bool:
        exist = find_live_members(group, **other_than)
        _wait_for_other_members(finished_jobs[group.pk])  # all have read, none has committed or written the group
        return exist

    finished_jobs: dict[Any, Any] = {}
    finish_locked, finish_module.finish = finish_module.finish, finish
    original, groups.on_member_finished = groups.on_member_finished, on_member_finished
    find_live_members, groups.has_live_members = groups.has_live_members, has_live_members


def _wait_for_other_members(job: Any) -> None:
    """Wait, before the commit, until the other members are before their commit, too; without a final job, of a pair."""
    from tests.sample_app.ledger import VARIABLE

    beside = f"{os.environ[VARIABLE]}-{job.group_id}"
    Path(f"{beside}-{job.group_index}").touch()
    members = [Path(f"{beside}-{index}") for index in range(job.group.then_index or 2)]
    deadline = time.monotonic() + 2
    while not all(member.exists() for member in members) and time.monotonic() < deadline:
        time.sleep(0.005)


def record_group_ends() -> None:
    """Record the end of each group in the ledger after its commit; this one is no fault."""
    from jobs.signals import group_finished
    from tests.sample_app.ledger import record

    def receive(*, group_id: Any, **facts: Any) -> None:
        record("group.finished", group=str(group_id), round=facts["round"])

    group_finished.connect(receive, weak=False)


def forget_repeated_starts() -> None:
    """Treat a repeated start of a remote worker as the start of another worker."""
    from uuid import uuid4

    from jobs.engine.remote.starts import RemoteSlot

    assert isinstance(RemoteSlot.owner, property)
    RemoteSlot.owner = property(lambda self: f"r:{self.api_token}:{self.worker}-{uuid4()}#{self.slot}")  # type: ignore[assignment]


def ignore_reservations() -> None:
    """Count running direct calls, but give the slot that a waiting call has reserved to the queue."""
    from jobs.engine.selection import limits

    def read_without_waiting(**options: Any) -> Any:
        return read_usage(**options)._replace(waiting=[])

    read_usage, limits.read_usage = limits.read_usage, read_without_waiting


def skip_load_lock() -> None:
    """Count costs in use without locking the row of the system load first."""
    from jobs.engine.maintenance import system_load
    from jobs.engine.selection import admission
    from jobs.models import SystemSnapshot

    def read_unlocked() -> Any:
        from django.db.models.functions import Now

        SystemSnapshot.objects.get_or_create(pk=SystemSnapshot.SINGLETON_ID)
        return SystemSnapshot.objects.annotate(now=Now()).get()

    def read_slowly() -> Any:
        found = costs()
        time.sleep(0.1)  # the counts become outdated, also on a busy machine
        return found

    assert callable(system_load.lock_row)
    system_load.lock_row = read_unlocked
    costs, admission.count_costs = admission.count_costs, read_slowly


def keep_host_isolation() -> None:
    """Keep the isolation level of the host in every transaction, and hold the lock on the limits for longer."""
    from jobs import db
    from jobs.engine.selection import limits
    from jobs.engine.worker import worker

    def read_slowly(connection: Any, *, all_rows: bool, lock: bool) -> Any:
        found = read(connection, all_rows=all_rows, lock=lock)
        if lock:
            time.sleep(0.05)  # other workers queue for the lock; a count that follows it is still exact
        return found

    assert callable(worker.set_read_committed)
    assert callable(db.use_own_connection)
    assert callable(db._is_read_committed)
    worker.set_read_committed = lambda: None
    db.use_own_connection = lambda: None
    db._is_read_committed = lambda using: True
    read, limits.read_limits = limits.read_limits, read_slowly


def share_one_transaction() -> None:
    """Record results and wait for the limits in one transaction."""
    from jobs import db
    from jobs.engine.worker import turn

    def take_turn(*args: Any, **kwargs: Any) -> Any:
        with db.atomic():
            return take(*args, **kwargs)

    take, turn.take_turn = turn.take_turn, take_turn


def skip_claim_recovery() -> None:
    """Skip the search for jobs that a failed turn may have claimed."""
    from jobs.engine.worker.turn import TurnRunner

    assert callable(TurnRunner.recover_claims)
    TurnRunner.recover_claims = lambda self: self.schedule.record_failed_turn()  # type: ignore[method-assign]


def cancel_without_guard() -> None:
    """Cancel without a lock: read the job, and later write whatever its status has become.

    On SQLite the lock is the transaction that starts IMMEDIATE, which goes as well.
    """
    from contextlib import nullcontext
    from unittest.mock import patch

    from jobs import db
    from jobs.engine import lifecycle, transitions
    from jobs.models import Job

    def write(job: Any, verb: str, target: Any, **fields: Any) -> None:
        time.sleep(0.02)  # the status that was read becomes outdated
        Job.objects.filter(pk=job.pk).update(status=target, **fields)

    def cancel(*args: Any, **kwargs: Any) -> Any:
        on_sqlite = db.connection().vendor == "sqlite"
        no_transaction = patch.object(db, "atomic", nullcontext) if on_sqlite else nullcontext()
        no_lock = patch.object(lifecycle, "lock_job", transitions.get_job)
        no_guard = patch.object(transitions, "_update_if_unchanged", write)
        with no_transaction, no_lock, no_guard:
            return original_cancel(*args, **kwargs)

    original_cancel, lifecycle.cancel = lifecycle.cancel, cancel


KINDS: dict[str, Callable[[], None]] = {
    "ignore_lost_leases": ignore_lost_leases,
    "write_without_tokens": write_without_tokens,
    "skip_limit_locks": skip_limit_locks,
    "reverse_targets": reverse_targets,
    "stop_heartbeats_early": stop_heartbeats_early,
    "delay_forkserver": delay_forkserver,
    "skip_group_locks": skip_group_locks,
    "record_group_ends": record_group_ends,
    "ignore_reservations": ignore_reservations,
    "skip_load_lock": skip_load_lock,
    "forget_repeated_starts": forget_repeated_starts,
    "keep_host_isolation": keep_host_isolation,
    "share_one_transaction": share_one_transaction,
    "skip_claim_recovery": skip_claim_recovery,
    "cancel_without_guard": cancel_without_guard,
}

# Each replacement has the same number of parameters and is always true.
TOKENS = (
    (re.compile(r'"jobscheduler_job"\."lease_token" = (%s\S*)'), r"\1 IS NOT NULL"),
    (re.compile(r"\blease_token = ANY\((%\(\w+\)s::uuid\[\])\)"), r"\1 IS NOT NULL"),
    (re.compile(r"g\.token = j\.lease_token"), r"g.token IS NOT NULL"),
    (re.compile(r"j\.lease_token = (json_extract\(g\.value, '\$\[1\]'\))"), r"\1 IS NOT NULL"),
    (re.compile(r"\blease_token IN (\(SELECT json_extract\(value, '\$\[1\]'\) FROM json_each\(%s\)\))"), r"EXISTS \1"),
)


def _reverse_order(*, connection: Any, **_: Any) -> None:
    connection.execute_wrappers.append(_execute_reversed)


def _execute_reversed(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    forwards = "ORDER BY b.priority DESC, b.position, b.created_at, b.id"
    backwards = "ORDER BY b.priority DESC, b.position DESC, b.created_at DESC, b.id DESC"
    return execute(sql.replace(forwards, backwards) if isinstance(sql, str) else sql, params, many, context)


def _drop_tokens(*, connection: Any, **_: Any) -> None:
    connection.execute_wrappers.append(_execute_without_tokens)


def _execute_without_tokens(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    if isinstance(sql, str) and "lease_token" in sql and not sql.lstrip().startswith("SELECT e.job_id"):
        for pattern, always in TOKENS:
            sql = pattern.sub(always, sql)
    return execute(sql, params, many, context)
