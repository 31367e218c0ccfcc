"""Register maintenance tasks and run them, each on its own: one that fails is logged and never stops the others.

Other apps register theirs with `register_task`. A worker runs the tasks that are due; `manage.py tick` runs all of
them once. A task that waits for more than the database has a thread of its own in a worker, and delays no other.

Remote workers need no local one: a request for offers first recovers dead leases, then handles deadlines, unfinished
actions on groups, expired offers, due times and targets, as far as that costs a request little.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jobs import db, notifications
from jobs.conf import conf
from jobs.engine import promoter, waiters
from jobs.engine.maintenance import (
    aging,
    deadlines,
    group_actions,
    recovery,
    retention,
    rollup_compaction,
    system_load,
)
from jobs.engine.remote import offers
from jobs.engine.selection import fair_share
from jobs.engine.slots import leases
from jobs.outages import OUTAGE_ERRORS, OutageGuard

logger = logging.getLogger("jobs.engine.maintenance.runner")
THREAD_JOIN_SEC = 1.5
ROUNDS_BEFORE_OFFERS = 4  # of due times and targets: the rest is left to the next request


class TaskThread(Protocol):
    """A thread that runs one task beside the maintenance thread."""

    def start(self) -> None: ...

    def end(self) -> None:
        """Ask the thread to end. It must not keep the process from ending."""

    def join(self, timeout: float | None = None) -> None: ...


@dataclass(frozen=True)
class MaintenanceTask:
    """`run` returns a summary; `every_sec` is asked after each run."""

    name: str
    run: Callable[[], object]
    every_sec: Callable[[], float]
    thread: Callable[[], TaskThread] | None = None


_tasks: dict[str, MaintenanceTask] = {}
_requested_tasks: set[str] = set()  # names of tasks to run before they are due
_lease_reaper = recovery.LeaseReaper()
_dead_lease_check = leases.DeadLeaseCheck()
_priority_aging = aging.PriorityAging()
_deadline_check = deadlines.DeadlineCheck()
_group_action_check = group_actions.GroupActionCheck()


def register_task(
    name: str,
    run: Callable[[], object],
    *,
    every_sec: Callable[[], float] = lambda: 1.0,
    thread: Callable[[], TaskThread] | None = None,
) -> None:
    """Register a task; the same name again replaces it. In a worker its `thread`, if it has one, runs instead."""
    _tasks[name] = MaintenanceTask(name, run, every_sec, thread)


def request_task(name: str) -> None:
    """Let the maintenance thread of this process run a task within a second. Called from any thread."""
    _requested_tasks.add(name)


def list_tasks() -> list[MaintenanceTask]:
    """Return the registered tasks in the order of their registration."""
    return list(_tasks.values())


def run_tasks() -> dict[str, object]:
    """Run every task once. Return by name what each returned, or the exception it raised."""
    results: dict[str, object] = {}
    for task in list_tasks():
        try:
            results[task.name] = task.run()
        except Exception as error:
            logger.exception("maintenance task %s failed", task.name)
            results[task.name] = error
    return results


class MaintenanceThread(threading.Thread):
    """Runs each task when it is due, on a thread and connection of its own."""

    def __init__(self) -> None:
        super().__init__(name="maintenance", daemon=True)
        self._end = threading.Event()
        self._outage = OutageGuard(logger, "maintenance", self._end, timeout_factor=10.0)
        self._due_at: dict[str, float] = {}
        self._tasks = [task for task in list_tasks() if task.thread is None]
        self._task_threads = [task.thread() for task in list_tasks() if task.thread is not None]

    def start(self) -> None:
        super().start()
        for thread in self._task_threads:
            thread.start()

    def run(self) -> None:
        while not self._end.wait(self._pause_sec()):
            with self._outage.survive():
                self._run_due_tasks()
        db.connection().close()
        for thread in self._task_threads:
            thread.join(THREAD_JOIN_SEC)

    def end(self) -> None:
        self._end.set()
        for thread in self._task_threads:
            thread.end()

    def _run_due_tasks(self) -> None:
        for task in self._tasks:
            if task.name in _requested_tasks:
                _requested_tasks.discard(task.name)
                self._due_at[task.name] = 0.0
            if time.monotonic() >= self._due_at.get(task.name, 0.0):
                began_at = time.monotonic()
                try:
                    task.run()
                except OUTAGE_ERRORS:
                    raise  # it stays due
                except Exception:
                    logger.exception("maintenance task %s failed; it runs again when it is due", task.name)
                self._due_at[task.name] = began_at + task.every_sec()

    def _pause_sec(self) -> float:
        due_at = min((self._due_at.get(task.name, 0.0) for task in self._tasks), default=0.0)
        return min(max(due_at - time.monotonic(), 0.05), 1.0)


def _promote() -> int:
    """Promote what is due or marked; at rest, one query."""
    state = promoter.read_queue_state()
    count = promoter.promote_due() if state.due_sec is not None and state.due_sec <= 0 else 0
    return count + (promoter.promote() if count or state.has_dirty_targets else 0)


register_task("recovery", _lease_reaper.run_round, every_sec=_lease_reaper.pause_sec)
register_task("withdraw", offers.expire_offers, every_sec=lambda: min(conf.DISPATCH_TIMEOUT_SEC / 3, 10.0))
register_task("pollers", offers.delete_silent_pollers, every_sec=lambda: 3600.0)
# A worker that may claim does this more often.
register_task("lanes", _promote, every_sec=lambda: 30 * conf.POLL_SEC)
register_task("retention", retention.run_round, every_sec=retention.pause_sec)
register_task("activities", retention.delete_old_activities, every_sec=lambda: retention.IDLE_SEC)
register_task("folding", rollup_compaction.run_round, every_sec=lambda: 600.0)
register_task("deadlines", _deadline_check.run_round, every_sec=_deadline_check.pause_sec)
notifications.on_notification(notifications.DEADLINE, lambda: request_task("deadlines"))
register_task("groups", _group_action_check.run_round)
# A claim that finds a limit full ends dead leases at once.
register_task("leases", _dead_lease_check.run_round, every_sec=_dead_lease_check.pause_sec)
register_task("snapshot", system_load.run_round, every_sec=lambda: system_load.INTERVAL_SEC)
register_task("aging", _priority_aging.run_round, every_sec=_priority_aging.pause_sec)
register_task("waiters", waiters.delete_expired_rows, every_sec=lambda: waiters.ROW_SEC)
register_task("shares", fair_share.delete_idle_accounts, every_sec=lambda: 60.0)


class ThrottledTask:
    """Runs a task as often as one worker would, however many requests call it."""

    def __init__(self, run: Callable[[], object], pause_sec: Callable[[], float]) -> None:
        self._run, self._pause_sec = run, pause_sec
        self._busy = threading.Lock()
        self._due_at = 0.0

    def __call__(self) -> None:
        if time.monotonic() < self._due_at or not self._busy.acquire(blocking=False):
            return
        try:
            self._run()
            self._due_at = time.monotonic() + self._pause_sec()
        finally:
            self._busy.release()


def build_offer_tasks() -> list[ThrottledTask]:
    """Build the tasks that run before offers.

    Recovery has no memory here, as in `manage.py recover`: between two requests any time may pass.
    """
    return [
        ThrottledTask(lambda: recovery.LeaseReaper().run_round(), lambda: conf.RECOVERY_SEC),
        ThrottledTask(deadlines.skip_late_jobs, lambda: 1.0),
        ThrottledTask(lambda: _group_action_check.run_actions(batches=2), lambda: 1.0),
    ]


_offer_tasks = build_offer_tasks()


def run_before_offers() -> None:
    """Run the tasks that offers depend on. Looks before it writes: an idle poll need not wait for SQLite's writer."""
    for task in _offer_tasks:
        task()
    offers.expire_offers()
    for _round in range(ROUNDS_BEFORE_OFFERS):
        state = promoter.read_queue_state()
        is_due = state.due_sec is not None and state.due_sec <= 0
        if is_due:
            promoter.promote_due()
        if not is_due and not state.has_dirty_targets:
            return
        promoter.promote_round()
