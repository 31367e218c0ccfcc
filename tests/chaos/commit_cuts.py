"""The wire between workers and PostgreSQL is cut at COMMIT, again and again: its answer, the commit itself, or both.

A worker cannot know whether a commit that was not answered took place. It repeats its results, which count once, and
hands back what it may have claimed; no handler starts before the commit of its claim was answered.
"""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from enum import StrEnum

from django.db import connection
from django.db.models import F, Sum

from jobs.models import GroupStatus, Job, JobEvent, JobGroup, JobMinute, JobRun
from jobs.services import jobs as job_services
from jobs.services.groups import group
from jobs.states import TERMINAL, EventKind, Status
from tests.chaos.crashable_postgres import Wire
from tests.chaos.report import SuiteReport
from tests.support.ledger import find_overlaps
from tests.support.worker_processes import FAST_SETTINGS, Fleet, wait_until_all_ended

WORKERS, SLOTS, LANES = 2, 4, 6
# A lease is so long that a lost claim is noticed by the checks instead of recovered.
SETTINGS = {**FAST_SETTINGS, "LEASE_SEC": 120, "HEARTBEAT_SEC": 0.5, "POLL_SEC": 0.2, "RETRY_BASE_SEC": 0}
LIMITED = {**SETTINGS, "LIMITS": {"global": 6}}
BACK_SEC = 40.0
LATE_SEC = 0.7
ENOUGH, BATCH = 40, 30
LOST_REPLY = "the reply to its claim was lost"
REFUSED = ("Traceback", "deadlock", "duplicate key", "IntegrityError", "lost the leases")


class Cut(StrEnum):
    BEFORE = "before"  # the commit does not reach the server, which rolls back
    DURING = "during"  # the server has the commit, the client does not wait for its end
    LATE = "late"  # the same, and the server is so slow that the client has reconnected before it commits
    AFTER = "after"  # the server has committed; its answer is lost


def run(
    fleet: Fleet, chance: random.Random, *, cuts: int, back_sec: float = BACK_SEC, sabotage: str = ""
) -> SuiteReport:
    """First without limits, where a turn is one pipeline; then with a limit, where it has several transactions."""
    verdict, done = SuiteReport(), Counter[str]()
    for settings in (SETTINGS, LIMITED):
        wire = CommitWire(int(connection.settings_dict["PORT"]), chance)
        through = {"DATABASE_URL": url_through(wire.port)}
        try:
            submit(chance)
            workers = fleet.start_many(
                WORKERS, f"--concurrency={SLOTS}", settings=settings, env=through, sabotage=sabotage
            )
            cut_many(wire, fleet, chance, cuts // 2)
            done += wire.cuts
            try:
                wait_until_all_ended(back_sec, fleet)
            except AssertionError as error:
                verdict.broken.append(str(error)[:600])
                for job in Job.objects.running():
                    verdict.broken.append(f"job {job.pk} is RUNNING and nobody runs it (owner {job.lease_owner})")
                return verdict
            for worker in workers:
                worker.terminate()
            verdict.broken += [f"ended badly:\n{worker.output}" for worker in workers if worker.wait_for_end() != 0]
        finally:
            wire.close()
    verdict.note(**dict(sorted(done.items())))
    judge(verdict, fleet)
    return verdict


def url_through(port: int) -> str:
    """The database behind this port, without encryption: the wire reads along."""
    named = connection.settings_dict
    server = f"{named['USER']}:{named['PASSWORD']}@{named['HOST']}:{port}"
    return f"postgres://{server}/{named['NAME']}?sslmode=disable&gssencmode=disable"


def submit(chance: random.Random) -> None:
    """Jobs of every kind of end: alone, in lanes, in groups, and failing once."""
    items = []
    for _ in range(BATCH):
        lane = f"lane-{chance.randrange(LANES)}" if chance.random() < 0.1 else None
        params = {"lane": lane or "", "seconds": chance.uniform(0, 0.03)}
        items.append({"job_type": "sample.work", "params": params, "target": lane})
    failing = [{"job_type": "sample.fail", "params": {"times": 1}, "max_retries": 3} for _ in range(3)]
    job_services.enqueue_many([*items[2:], *failing])
    group(items[:2], name="pair").enqueue()


def cut_many(wire: CommitWire, fleet: Fleet, chance: random.Random, cuts: int) -> None:
    """Until so many commits were cut, with jobs to do all the time."""
    live = Job.objects.exclude(status__in=sorted(TERMINAL))
    deadline = time.monotonic() + 60 + 2 * cuts
    wire.begin(cuts)
    while wire.left:
        if live.count() < ENOUGH:
            submit(chance)
        assert time.monotonic() < deadline, f"{wire.left} cuts are left\n{fleet.logs()[-5000:]}"
        time.sleep(0.02)  # the pace of the stream


def judge(verdict: SuiteReport, fleet: Fleet) -> None:
    status = dict(Job.objects.values_list("pk", "status"))
    tails = Job.objects.latest_attempts()
    verdict.note(jobs=len(status), retries=Job.objects.filter(retry_of__isnull=False).count())
    verdict.broken += [f"{job} is {job.status}: {job.status_reason}" for job in tails.exclude(status="COMPLETED")]
    reasons = Counter(Job.objects.filter(status=Status.FAILED).values_list("job_type", "status_reason"))
    wrong = {item: n for item, n in reasons.items() if item[0] != "sample.fail" or "lease" in item[1]}
    verdict.require(not wrong, f"jobs failed that should not: {wrong}")
    failing = Job.objects.filter(job_type="sample.fail")
    firsts, seconds = failing.filter(retry_of=None).count(), failing.filter(retry_of__isnull=False).count()
    verdict.require(firsts == seconds, f"{firsts} jobs failed once, {seconds} retries were made")
    groups = Counter(JobGroup.objects.values_list("status", flat=True))
    verdict.require(set(groups) == {GroupStatus.COMPLETED}, f"the groups ended as {dict(groups)}")
    judge_events(verdict, len(status))
    ran = fleet.ledger.list_calls()
    calls = Counter(call.job for call in ran)
    verdict.require(len(calls) == len(status), f"{len(calls)} of {len(status)} jobs ran")
    verdict.broken += [f"job {job} ran {times} times" for job, times in calls.items() if times > 1]
    verdict.broken += find_overlaps(ran, lambda call: call.job)
    verdict.broken += find_overlaps([call for call in ran if call.facts["lane"]], lambda call: call.facts["lane"])
    for worker in fleet.workers:
        lines = [line for line in worker.output.splitlines() if any(word in line for word in REFUSED)]
        verdict.broken += [f"{worker.log_path.name}: {line}" for line in lines]


def judge_events(verdict: SuiteReport, jobs: int) -> None:
    """One end each: in the trail, in the run, and in the rollup."""
    ends = JobEvent.objects.filter(kind__in=sorted(TERMINAL))
    per_job = Counter(ends.values_list("job_id", flat=True))
    verdict.broken += [f"job {job} has {n} terminal events" for job, n in per_job.items() if n > 1]
    verdict.require(len(per_job) == jobs, f"{len(per_job)} of {jobs} jobs have a terminal event")
    differ = JobRun.objects.exclude(status=F("job__status")).count()
    verdict.require(not differ, f"{differ} runs ended otherwise than their jobs")
    verdict.require(JobRun.objects.count() == jobs, f"{JobRun.objects.count()} runs of {jobs} jobs")
    trail = Counter(ends.values_list("kind", flat=True))
    rollup = {row["outcome"]: row["total"] for row in JobMinute.objects.values("outcome").annotate(total=Sum("jobs"))}
    verdict.require(rollup == dict(trail), f"the rollup counts {rollup}, the trail {dict(trail)}")
    starts = JobEvent.objects.filter(kind=EventKind.RUNNING).count()
    handed_back = JobEvent.objects.filter(kind=EventKind.HANDED_BACK, reason=LOST_REPLY).count()
    verdict.note(handed_back=handed_back)
    verdict.require(handed_back, "no claim was handed back: the cuts hit none")
    verdict.require(starts == jobs + handed_back, f"{starts} claims, {jobs} jobs, {handed_back} handed back")


# ---------------------------------------------------------------------- the wire


class CommitWire(Wire):
    """A wire that reads PostgreSQL's protocol, and cuts a connection where a transaction on jobs is committed."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.chance = random.Random(chance.random())
        self.cuts: Counter[str] = Counter()
        self.left = 0
        self._until_next = 0
        self._choice = threading.Lock()
        super().__init__(port)

    def begin(self, cuts: int) -> None:
        with self._choice:
            self.left = cuts

    def choose(self, what: str) -> Cut | None:
        """Whether to cut this commit, and how."""
        with self._choice:
            if what == "others" and self.chance.random() < 0.8:  # there are many
                return None
            self._until_next -= 1
            if not self.left or self._until_next > 0:
                return None
            self.left -= 1
            self._until_next = self.chance.randrange(4, 16)
            how = self.chance.choice(list(Cut))
            self.cuts[f"{what} {how}"] += 1
            return how

    def _join(self, near: socket.socket, alive: threading.Event) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            near.close()
            return
        with near, far:
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # messages are sent one by one
            self._pairs.append((near, far))
            session = Session(self, near, far)
            requests = threading.Thread(target=session.forward_requests, daemon=True)
            requests.start()
            session.forward_answers()
            requests.join()


class Session:
    """One connection: what it is committing is known from the statements that it has sent since the last commit."""

    WRITES = re.compile(rb"(UPDATE|INSERT INTO|DELETE FROM) \"?jobscheduler_(job|jobrun|lanemark)\"?\b")

    def __init__(self, wire: CommitWire, near: socket.socket, far: socket.socket) -> None:
        self.wire, self.near, self.far = wire, near, far
        self.prepared: dict[bytes, bytes] = {}  # text by name
        self.pending: list[bytes] = []  # statements of the open transaction
        self.in_transaction = False  # as the server said last
        self.swallow: Cut | None = None

    def forward_requests(self) -> None:
        with suppress(OSError):
            self.far.sendall(read_untyped(self.near))
            while message := read_message(self.near):
                how = self._decide_cut(message[:1], message[5:])
                if how is Cut.BEFORE:
                    break
                self.swallow = how
                if how in (Cut.DURING, Cut.LATE):
                    hang_up(self.near)
                if how is Cut.LATE:
                    time.sleep(LATE_SEC)  # how slow the server is
                self.far.sendall(message)
                if how is not None:
                    return  # the answers' thread ends what is left
        hang_up(self.near, self.far)

    def forward_answers(self) -> None:
        with suppress(OSError):
            while message := read_message(self.far):
                if message[:1] == b"Z":
                    self.in_transaction = message[5:6] != b"I"
                    if self.swallow is not None:
                        break
                if self.swallow is None:
                    self.near.sendall(message)
        hang_up(self.near, self.far)

    def _decide_cut(self, kind: bytes, body: bytes) -> Cut | None:
        """Follow the statements; at a commit of something written to jobs, ask whether to cut."""
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self.prepared[name] = text
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            self.pending.append(self.prepared.get(name, b""))
        elif kind == b"Q":
            self.pending.append(body)
        if kind not in (b"Q", b"S") or not self.pending:
            return None
        last = self.pending[-1].strip(b"\0 ;").upper()
        is_begin, is_commit = last.startswith(b"BEGIN"), last in (b"COMMIT", b"ROLLBACK")
        if is_begin or (self.in_transaction and not is_commit):
            return None
        written = [text for text in self.pending if self.WRITES.search(text)]
        self.pending.clear()
        return self.wire.choose(name_of(written)) if written and last != b"ROLLBACK" else None


def name_of(written: list[bytes]) -> str:
    """Name what is committed: a turn is the end of some jobs and the claim of others."""
    claims = any(b"SET status = 'RUNNING'" in text for text in written)
    ends = any(b"jobscheduler_jobminute" in text for text in written)
    return "turns" if claims and ends else "claims" if claims else "ends" if ends else "others"


def read_message(source: socket.socket) -> bytes:
    """Read a message with its type; empty at the end."""
    kind = source.recv(1)
    return kind + read_untyped(source) if kind else b""


def read_untyped(source: socket.socket) -> bytes:
    length = read_exactly(source, 4)
    return length + read_exactly(source, int.from_bytes(length) - 4)


def read_exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = source.recv(size - len(found))
        if not data:
            raise ConnectionError("cut in the middle of a message")
        found += data
    return bytes(found)


def hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
