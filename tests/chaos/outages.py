"""The database crashes, cuts its clients off, or just stops answering: the same processes go on, nothing is lost."""

from __future__ import annotations

import random
import re
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connection

from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.chaos.crashable_postgres import Server, Wire
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import FAST_SETTINGS, Fleet, WorkerProcess, get_event, wait_until

BACK_SEC = 5.0  # after the database, the worker is back at its full speed
PATIENT = {**FAST_SETTINGS, "LEASE_SEC": 10, "HEARTBEAT_SEC": 1, "RECOVERY_SEC": 1}
FENCED = {**PATIENT, "LEASE_SEC": 4, "HEARTBEAT_SEC": 0.5}
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sample.work", {"seconds": 0.02}),
    ("sample.noop", {}),
    ("sample.count", {"upto": 9}),
)
TICKS = 100  # of the processor's clock in a second


def run(
    server: Server, fleet: Fleet, chance: random.Random, *, crashes: int, down_sec: float, cuts: int, hangs: int
) -> SuiteReport:
    """All of it under a steady stream of jobs, on the same two worker processes; then the dead wire."""
    verdict = SuiteReport()
    workers = fleet.start_many(2, "--concurrency=4", settings=PATIENT)
    long_ones = [job_services.enqueue("sample.sleepy", {"seconds": 6}).pk for _ in range(2)]
    with Stream(chance) as stream:
        for trouble in [crash] * crashes + [cut_sessions] * cuts:
            wait_until(lambda: stream.grows(20), what=fleet.logs, forgiving=True)
            watches = [Watch(worker) for worker in workers]
            trouble(verdict, server, down_sec, watches)
            judge_back(verdict, fleet)
            for item in watches:
                item.judge_lines(verdict)
    judge_nothing_lost(verdict, fleet, workers, [*stream.acknowledged, *long_ones])
    for worker in workers:
        worker.terminate()
        verdict.require(
            worker.wait_for_end() == 0, f"a worker that has lived through all that ended badly\n{worker.output}"
        )
    for _ in range(hangs):
        hang(verdict, server, fleet)
    verdict.note(crashes=crashes, cuts=cuts, hangs=hangs, jobs=len(stream.acknowledged), refused=stream.refused)
    return verdict


def crash(verdict: SuiteReport, server: Server, down_sec: float, watches: list[Watch]) -> None:
    server.crash()
    time.sleep(down_sec)  # the length of the outage, not a wait for anything
    for item in watches:
        item.judge_while_down(verdict)
    server.start()


def cut_sessions(verdict: SuiteReport, server: Server, down_sec: float, watches: list[Watch]) -> None:
    """The server ends all sessions but ours; it stays up."""
    wait_until(cut_everybody_off, forgiving=True)


def hang(verdict: SuiteReport, server: Server, fleet: Fleet) -> None:
    """A wire goes dead under one worker: its handlers stop before their leases end; new connections bring it back."""
    wire = Wire(server.port)
    through = {"DATABASE_URL": server.url_through(wire.port)}
    try:
        cut_off = fleet.start("--concurrency=2", settings=FENCED, env=through)
        held = job_services.enqueue("sample.long_once", {"seconds": 600}, max_retries=1)
        wait_until(lambda: fleet.ledger.read_job_lines(held.pk, "start"), what=fleet.logs)
        heir = fleet.start(settings=FENCED)
        watch, dead_at = Watch(cut_off), time.monotonic()
        wire.go_dead()
        wait_until(lambda: Job.objects.filter(retry_of_id=held.pk, status=Status.COMPLETED).exists(), what=fleet.logs)
        judge_fenced(verdict, fleet, held.pk, dead_at)
        heir.terminate()
        verdict.require(heir.wait_for_end() == 0, "the heir did not end well")
        wire.revive()
        judge_revived(verdict, fleet)
        watch.judge_lines(verdict)
        verdict.require(cut_off.alive, "the worker that was cut off ended")
    finally:
        wire.close()
    cut_off.terminate()
    verdict.require(cut_off.wait_for_end() == 0, f"the worker that was cut off ended badly\n{cut_off.output}")


class Stream:
    """Submits jobs all the time, and knows which ones were acknowledged."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.acknowledged: list[UUID] = []
        self.refused = 0
        self._seen = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._submit, daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def grows(self, by: int) -> bool:
        """Whether so many more have been acknowledged since this was last true."""
        if len(self.acknowledged) - self._seen < by:
            return False
        self._seen = len(self.acknowledged)
        return True

    def _submit(self) -> None:
        while not self._end.wait(self.chance.uniform(0.005, 0.03)):
            lane = f"lane-{self.chance.randrange(6)}" if self.chance.random() < 0.5 else None
            kind = self.chance.choice(KINDS)
            try:
                self.acknowledged.append(job_services.enqueue(*kind, target=lane).pk)
            except (DatabaseError, InterfaceError):
                self.refused += 1
                connection.close()
        connection.close()


class Watch:
    """What one worker does while something is wrong: its processor time and its log lines."""

    def __init__(self, worker: WorkerProcess) -> None:
        self.worker = worker
        self.began = time.monotonic()
        self.cpu = cpu_seconds(worker.pid)
        self.lines = len(notable(worker))

    def judge_while_down(self, verdict: SuiteReport) -> None:
        share = (cpu_seconds(self.worker.pid) - self.cpu) / (time.monotonic() - self.began)
        verdict.note(cpu_while_down=f"{share:.0%}")
        verdict.require(share < 0.10, f"{share:.0%} of a processor while the database was down")
        verdict.require(self.worker.alive, f"{self.worker.log_path.name} ended:\n{self.worker.output[-2000:]}")

    def judge_lines(self, verdict: SuiteReport) -> None:
        logged = notable(self.worker)[self.lines :]
        seconds = time.monotonic() - self.began
        verdict.note(lines_a_second=len(logged) / seconds)
        text = "\n".join(logged[:40])
        verdict.require(len(logged) <= max(2.0, seconds), f"{len(logged)} lines in {seconds:.1f} s:\n{text}")


def notable(worker: WorkerProcess) -> list[str]:
    """Every line but those that come with every job."""
    ordinary = re.compile(r"claimed (job|\d+ jobs)|finished: |was (stopped|handed back)|lease of worker")
    return [line for line in worker.output.splitlines() if not ordinary.search(line)]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cut_everybody_off() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    return True


def judge_back(verdict: SuiteReport, fleet: Fleet) -> None:
    """Soon after the database, jobs are picked up as fast as notifications travel again."""
    began = time.monotonic()
    waits: list[float] = []
    while time.monotonic() - began < BACK_SEC + 20 and (not waits or waits[-1] > 0.5):
        waits.append(pick_up(fleet))
    took = time.monotonic() - began
    verdict.note(back_after=took, pick_up=waits[-1])
    verdict.require(took <= BACK_SEC, f"back only {took:.1f} s after the database; pick-ups took {waits}")


def pick_up(fleet: Fleet) -> float:
    made: list[UUID] = []

    def try_submit() -> bool:
        made.append(job_services.enqueue("sample.noop", priority="URGENT").pk)
        return True

    wait_until(try_submit, forgiving=True)
    ended = Job.objects.filter(pk=made[-1], status=Status.COMPLETED)
    wait_until(ended.exists, 60, fleet.logs, forgiving=True)
    times = [get_event(made[-1], kind).at for kind in (EventKind.SUBMITTED, EventKind.RUNNING)]
    return float((times[1] - times[0]).total_seconds())


def judge_fenced(verdict: SuiteReport, fleet: Fleet, job_id: UUID, dead_at: float) -> None:
    """The handler's last moment was before its lease was over, and so before its successor's first."""
    ends = fleet.ledger.read_job_lines(job_id, "end")
    verdict.require(ends, "the handler of the cut-off worker was not stopped")
    if ends:
        ran, lease = ends[0]["at"] - dead_at, FENCED["LEASE_SEC"]
        verdict.note(stopped_after=ran)
        verdict.require(ran < lease, f"the handler ran for {ran:.1f} s, its lease for at most {lease} s after the wire")


def judge_revived(verdict: SuiteReport, fleet: Fleet) -> None:
    """Threads that wait on the dead connections are freed after a lease; then everything is as it was."""
    began = time.monotonic()
    last = job_services.enqueue("sample.noop")
    wait_until(lambda: Job.objects.filter(pk=last.pk, status=Status.COMPLETED).exists(), 60, fleet.logs)
    verdict.note(back_after_the_wire=time.monotonic() - began)
    judge_back(verdict, fleet)


def judge_nothing_lost(
    verdict: SuiteReport, fleet: Fleet, workers: list[WorkerProcess], acknowledged: list[UUID]
) -> None:
    live = Job.objects.exclude(status__in=[Status.COMPLETED, Status.FAILED])
    wait_until(
        lambda: not live.exists(), 60, lambda: f"{live.count()} jobs end\n{fleet.logs()[-5000:]}", forgiving=True
    )
    known = dict(Job.objects.values_list("pk", "status"))
    verdict.broken += [f"job {item} was acknowledged and is gone" for item in acknowledged if item not in known]
    tails = Job.objects.latest_attempts().exclude(status=Status.COMPLETED)
    verdict.broken += [f"job {job.pk} is {job.status}: {job.status_reason}" for job in tails]
    expired = Job.objects.filter(status=Status.FAILED)
    verdict.note(leases_lost=expired.count())
    verdict.broken += [f"job {job.pk}: {job.status_reason}" for job in expired.exclude(status_reason="lease expired")]
    calls = [call.job for call in fleet.ledger.list_calls()]
    verdict.broken += [
        f"{describe_job(item, fleet)} ran {calls.count(item)} times" for item in set(calls) if calls.count(item) > 1
    ]
    verdict.broken += [f"{worker.log_path.name} ended" for worker in workers if not worker.alive]


def describe_job(job_id: Any, fleet: Fleet) -> str:
    """A job with its trail, and what the workers said of it."""
    trail = JobEvent.objects.filter(job_id=job_id).order_by("id").values_list("kind", "at", "reason")
    steps = "; ".join(f"{kind} {at:%H:%M:%S.%f} {reason}" for kind, at, reason in trail)
    lines = [line for line in fleet.logs().splitlines() if str(job_id) in line]
    return f"job {job_id} ({steps}; {'; '.join(lines)})"
