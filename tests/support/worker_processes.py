"""Real `manage.py worker` processes, the ledger they leave outside the database, and waiting with a deadline."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from jobs.models import Job, JobEvent
from jobs.states import TERMINAL, Status
from tests.sample_app import ledger
from tests.support.ledger import Ledger

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
POLL_SEC = 0.02
START_SEC = 30.0
WAIT_SEC = 30.0  # how long anything that should happen may take on a slow machine

# Short enough for a test to see leases run out, long enough for a busy machine to renew them.
FAST_SETTINGS: dict[str, Any] = {
    "LEASE_SEC": 2,
    "HEARTBEAT_SEC": 0.3,
    "GRACE_SEC": 0.5,
    "RECOVERY_SEC": 0.3,
    # With notifications the fallback poll is ten times rarer: a missing notification makes the test fail.
    "POLL_SEC": 0.1 if connection.vendor == "sqlite" else 3,
    "SHUTDOWN_GRACE_SEC": 1,
    "RETRY_BASE_SEC": 0,
    "LIMITS": {"global": None},
}
LONG_LEASE_SETTINGS = {
    **FAST_SETTINGS,
    "LEASE_SEC": 20,
    "HEARTBEAT_SEC": 0.5,
    "GRACE_SEC": 5,
}  # no process dies here: leases never matter


class WorkerProcess:
    """One worker in a session of its own. What it prints goes to a file."""

    def __init__(self, number: int, options: Iterable[str], env: dict[str, str], home: Path) -> None:
        self.log_path = home / f"worker-{number}.log"
        with self.log_path.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(MANAGE), "worker", *options],
                env=env,
                cwd=MANAGE.parent,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self.log_path.read_text()

    @property
    def name(self) -> str:
        found = re.search(r"worker (\S+) started:", self.output)
        assert found, self.output
        return found.group(1)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal, but only to a process that was not waited for yet."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """As kill -9 does: no last words."""
        self.signal(signal.SIGKILL)
        self.process.wait(START_SEC)

    def freeze(self) -> None:
        """Send SIGSTOP outside of a transaction, because its locks would stop all other processes, too."""
        for _ in range(100):
            self.signal(signal.SIGSTOP)
            wait_until(lambda: _process_state(self.pid) == "T", 5, "the process stops")
            if not _database_is_locked():
                return
            self.unfreeze()
            time.sleep(POLL_SEC)
        raise AssertionError("the worker was never outside of a transaction")

    def unfreeze(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def wait_for_end(self, seconds: float = WAIT_SEC) -> int:
        """Wait for the end of the process; return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"worker {self.pid} did not end in {seconds:g} s:\n{self.output}") from None


class Fleet:
    """The workers of one test, on its database. Whatever is left of them at the end is killed."""

    def __init__(self, env: dict[str, str], home: Path) -> None:
        self.ledger = Ledger(home / "runs.log")
        self.home = home
        self.env = {**env, ledger.VARIABLE: str(self.ledger.path), "PYTHONUNBUFFERED": "1"}
        self.workers: list[WorkerProcess] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            with suppress(ProcessLookupError):
                worker.signal(signal.SIGKILL)
        for worker in self.workers:
            worker.process.wait()

    def start(
        self,
        *options: str,
        settings: dict[str, Any] | None = None,
        sabotage: str = "",
        env: dict[str, str] | None = None,
        wait: bool = True,
    ) -> WorkerProcess:
        child_env = {
            **self.env,
            **to_environ(FAST_SETTINGS if settings is None else settings),
            **(env or {}),
            "SABOTAGE": sabotage,
        }
        worker = WorkerProcess(len(self.workers), options, child_env, self.home)
        self.workers.append(worker)
        if wait:
            self.wait_until_started(worker)
        return worker

    def start_many(self, count: int, *options: str, **how: Any) -> list[WorkerProcess]:
        started = [self.start(*options, wait=False, **how) for _ in range(count)]
        self.wait_until_started(*started)
        return started

    def wait_until_started(self, *workers: WorkerProcess) -> None:
        def all_started() -> bool:
            for worker in workers:
                assert worker.alive, f"a worker ended with {worker.process.returncode}:\n{worker.output}"
            return all(" started: " in worker.output for worker in workers)

        wait_until(all_started, START_SEC, "the workers start")

    def logs(self) -> str:
        return "\n".join(f"--- {worker.log_path.name}\n{worker.output}" for worker in self.workers)


def wait_until(
    condition: Callable[[], object], seconds: float = WAIT_SEC, what: object = "", *, forgiving: bool = False
) -> None:
    """Poll `condition` until it is true. `what` describes it on failure; `forgiving` ignores database errors."""
    deadline = time.monotonic() + seconds
    while not _holds(condition, forgiving):
        if time.monotonic() > deadline:
            description = what() if callable(what) else what
            raise AssertionError(f"not true after {seconds:g} s: {description}")
        time.sleep(POLL_SEC)


def _holds(condition: Callable[[], object], forgiving: bool) -> bool:
    try:
        return bool(condition())
    except (DatabaseError, InterfaceError):
        if not forgiving:
            raise
        connection.close()
        return False


# ---------------------------------------------------------------------- what the database says


def get_job(job_id: UUID) -> Job:
    return Job.objects.get(pk=job_id)


def wait_for_status(job_id: UUID, *wanted: Status, seconds: float = WAIT_SEC, fleet: Fleet | None = None) -> Job:
    def describe() -> str:
        story = "\n".join(f"{e.at:%H:%M:%S.%f} {e.kind} {e.reason} {e.data}" for e in list_events(job_id))
        return f"job {job_id} becomes {' or '.join(wanted)}, it is {get_job(job_id).status}:\n{story}\n" + (
            fleet.logs() if fleet else ""
        )

    wait_until(lambda: Job.objects.filter(pk=job_id, status__in=wanted).exists(), seconds, describe)
    return get_job(job_id)


def wait_until_all_ended(seconds: float, fleet: Fleet | None = None) -> None:
    """Wait until all jobs have ended."""
    live = Job.objects.exclude(status__in=sorted(TERMINAL))

    def what() -> str:
        logs = fleet.logs()[-20_000:] if fleet else ""
        return f"{live.count()} jobs end: {list(live.values_list('status', 'gate')[:20])}\n{logs}"

    wait_until(lambda: not live.exists(), seconds, what)


def get_retry(job_id: UUID) -> Job:
    return Job.objects.get(retry_of_id=job_id)


def list_attempts(job_id: UUID) -> list[Job]:
    """Return the job and all its retries, oldest first."""
    found = [get_job(job_id)]
    while newer := Job.objects.filter(retry_of_id=found[-1].pk).first():
        found.append(newer)
    return found


def list_events(job_id: UUID, *kinds: str) -> list[JobEvent]:
    found = JobEvent.objects.filter(job_id=job_id).order_by("id")
    return list(found.filter(kind__in=kinds) if kinds else found)


def get_event(job_id: UUID, kind: str) -> JobEvent:
    (found,) = list_events(job_id, kind)
    return found


def get_database_time() -> Any:
    """Return the time of the clock that events are written with."""
    if connection.vendor == "sqlite":
        return timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


# ---------------------------------------------------------------------- small print


def to_environ(settings: dict[str, Any]) -> dict[str, str]:
    return {
        f"JOBSCHEDULER_{key}": json.dumps(value) if isinstance(value, dict) else str(value)
        for key, value in settings.items()
    }


def _process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _database_is_locked() -> bool:
    if connection.vendor == "sqlite":
        return _sqlite_is_locked(str(connection.settings_dict["NAME"]))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND state LIKE 'idle in transaction%' AND pid <> pg_backend_pid()"
        )
        return bool(cursor.fetchone()[0])


def _sqlite_is_locked(path: str) -> bool:
    import sqlite3

    probe = sqlite3.connect(path, timeout=0.2, isolation_level=None)
    try:
        probe.execute("BEGIN IMMEDIATE")
        probe.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        probe.close()
    return False


def is_running(pid: int) -> bool:
    try:
        return _process_state(pid) != "Z"
    except OSError:
        return False


def build_environment() -> dict[str, str]:
    return {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
