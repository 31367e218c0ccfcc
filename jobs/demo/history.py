"""The demo's past week: finished jobs with their runs, events and rollup rows, as a worker would have left them."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import sin, tau
from typing import Any, NamedTuple
from uuid import UUID

from jobs import clock, db, ids
from jobs.actors import Actor, ActorKind
from jobs.demo import TENANT
from jobs.models import Job, JobEvent, JobMinute, JobRun
from jobs.models.rollup import BUCKETS_SEC, HOUR_WRITER, MINUTE_RETENTION
from jobs.states import Cause, EventKind, Status

WORKER = "demo"
BATCH_SIZE = 500
RESERVED_ID = -1  # triggers of SQLite see it as the id of a row that does not have one yet
HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
RECENT, RECENT_FACTOR = timedelta(days=2), 2
RETRY_DELAY = timedelta(seconds=10)
ERROR = "ConnectionResetError: the other end closed the connection"


class Load(NamedTuple):
    """How many jobs of a type are typical, with their failures in percent and their mean times in seconds."""

    job_type: str
    resource: str
    hourly: int
    failing: int
    wait_sec: float
    run_sec: float


TYPICAL_LOAD = (
    Load("demo.mail", "demo-mail", 12, 4, 0.4, 0.3),
    Load("demo.report", "demo-cpu", 3, 1, 3.0, 40.0),
    Load("demo.import", "demo-cpu", 1, 0, 20.0, 240.0),
    Load("demo.print", "demo-printer", 4, 15, 1.5, 4.0),
)


class Attempt(NamedTuple):
    """One job of the history. A failed one has a retry, which completes."""

    job: Job
    started_at: datetime
    ended_at: datetime
    retry_id: UUID | None


@dataclass
class Rows:
    runs: list[JobRun] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    minutes: dict[tuple[Any, ...], JobMinute] = field(default_factory=dict)


def create_past_week(actor: Actor) -> None:
    """Insert the jobs of a week that ends now, or before the first event of the site.

    Events are found by their time along their ids, so these get smaller ids than those of the site.
    """
    first_event = JobEvent.objects.order_by("pk").first()
    now = clock.now()
    attempts = list(_build_attempts(now if first_event is None else first_event.at))
    rows, compacted_before = Rows(), _truncate(now, HOUR) - MINUTE_RETENTION
    for attempt in attempts:
        _add_run(rows, attempt, actor)
        _add_to_rollup(rows, attempt, compacted_before)
    rows.events.sort(key=lambda event: event.at)
    end_id = RESERVED_ID if first_event is None else min(first_event.pk, RESERVED_ID)
    for number, event in enumerate(rows.events, start=end_id - len(rows.events)):
        event.pk = number
    with db.atomic():
        Job.objects.bulk_create([attempt.job for attempt in attempts], batch_size=BATCH_SIZE)
        JobRun.objects.bulk_create(rows.runs, batch_size=BATCH_SIZE)
        JobEvent.objects.bulk_create(rows.events, batch_size=BATCH_SIZE)
        JobMinute.objects.bulk_create(rows.minutes.values(), batch_size=BATCH_SIZE)


def _build_attempts(until: datetime) -> Iterator[Attempt]:
    rng = random.Random(7)  # noqa: S311 — the same figures every time
    hour = _truncate(until, HOUR) - WEEK
    while hour < until:
        factor = 1.2 + sin(hour.timestamp() / 86_400 * tau)
        if until - hour < RECENT:
            factor *= RECENT_FACTOR
        for load in TYPICAL_LOAD:
            for _ in range(round(load.hourly * factor * rng.uniform(0.6, 1.4))):
                is_failing = rng.random() * 100 < load.failing
                chain = _build_chain(rng, load, hour + HOUR * rng.random(), is_failing)
                if chain[-1].ended_at < until:
                    yield from chain
        hour += HOUR


def _build_chain(rng: random.Random, load: Load, created_at: datetime, is_failing: bool) -> list[Attempt]:
    """Return a job that completes, after one that fails if `is_failing`."""
    chain: list[Attempt] = []
    number = rng.randrange(1, 90)
    params: dict[str, Any] = {}
    match load.job_type:
        case "demo.mail":
            params = {"to": f"reader-{number}@open.example"}
        case "demo.report":
            params = {"month": f"2026-{number % 9 + 1:02d}"}
        case "demo.import":
            params = {"path": f"orders-{number}.csv", "rows": number * 10}
        case "demo.print":
            params = {"copies": number % 9 + 1}
    retry_id = _make_id(rng, created_at)
    for status in (Status.FAILED, Status.COMPLETED) if is_failing else (Status.COMPLETED,):
        previous = chain[-1].job if chain else None
        due_at = created_at + RETRY_DELAY if previous else created_at
        started_at = due_at + timedelta(seconds=load.wait_sec * rng.uniform(0.5, 4))
        ended_at = started_at + timedelta(seconds=load.run_sec * rng.uniform(0.5, 2))
        job_id, retry_id = retry_id, _make_id(rng, ended_at)
        job = Job(
            id=job_id,
            job_type=load.job_type,
            params=params,
            tenant=TENANT,
            resource=load.resource,
            flow_id=ids.derive_flow_id(TENANT, load.job_type, load.resource, ""),
            position=int(created_at.timestamp() * 1_000_000) * 1024,
            created_at=created_at,
            not_before=due_at if previous else None,
            dispatched_at=started_at,
            status=status,
            status_reason=ERROR if status == Status.FAILED else "",
            fence=len(chain) + 1,
            attempt=len(chain) + 1,
            retry_of=previous,
        )
        chain.append(Attempt(job, started_at, ended_at, retry_id if status == Status.FAILED else None))
        created_at = ended_at
    return chain


def _make_id(rng: random.Random, moment: datetime) -> UUID:
    """Return a UUIDv7 of this time."""
    return UUID(
        int=ids.min_id_at(moment).int | 0x7 << 76 | rng.getrandbits(12) << 64 | 0b10 << 62 | rng.getrandbits(62)
    )


def _add_run(rows: Rows, attempt: Attempt, actor: Actor) -> None:
    """Add the run of an attempt, and its events as the engine records them."""
    job, is_failed = attempt.job, attempt.retry_id is not None
    rows.runs.append(
        JobRun(
            job=job,
            status=job.status,
            started_at=attempt.started_at,
            finished_at=attempt.ended_at,
            exit_code=int(is_failed),
            error=ERROR if is_failed else "",
            worker=WORKER,
        )
    )
    worker = Actor(ActorKind.WORKER, WORKER)
    submitter, origin = (worker, f"retry of {job.retry_of_id}") if job.retry_of_id else (actor, "")
    queued, running, failed = Status.QUEUED, Status.RUNNING, Status.FAILED
    ended = {"reason": job.status_reason, "data": {"cause": Cause.ERROR} if is_failed else None}
    kinds: list[tuple[datetime, EventKind, Actor, Any, Status, dict[str, Any]]] = [
        (job.created_at, EventKind.SUBMITTED, submitter, "", queued, {"reason": origin}),
        (attempt.started_at, EventKind.RUNNING, worker, queued, running, {"reason": "admitted"}),
        (attempt.ended_at, EventKind(job.status), worker, running, Status(job.status), ended),
    ]
    if is_failed:
        retry = {"data": {"retried_by": str(attempt.retry_id)}}
        kinds.append((attempt.ended_at, EventKind.RETRY_CREATED, worker, failed, failed, retry))
    for at, kind, by, from_status, to_status, fields in kinds:
        actor_fields = {"actor_kind": str(by.kind), "actor_name": by.name}
        statuses = {"from_status": str(from_status), "to_status": str(to_status)}
        rows.events.append(JobEvent(job=job, at=at, kind=str(kind), **statuses, **actor_fields, **fields))


def _add_to_rollup(rows: Rows, attempt: Attempt, compacted_before: datetime) -> None:
    """Add the attempt to the row of its minute, or of its hour where compaction would have left one."""
    job, hour = attempt.job, _truncate(attempt.ended_at, HOUR)
    is_compacted = hour < compacted_before
    minute = hour if is_compacted else _truncate(attempt.ended_at, timedelta(minutes=1))
    waited = (attempt.started_at - (job.not_before or job.created_at)).total_seconds()
    ran = (attempt.ended_at - attempt.started_at).total_seconds()
    buckets = bisect_right(BUCKETS_SEC, waited), bisect_right(BUCKETS_SEC, ran)
    key = (minute, job.job_type, job.status, *buckets)
    row = rows.minutes.get(key)
    if row is None:
        row = rows.minutes[key] = JobMinute(
            minute=minute,
            worker=HOUR_WRITER if is_compacted else WORKER,
            tenant=TENANT,
            resource=job.resource,
            job_type=job.job_type,
            outcome=job.status,
            wait_bucket=buckets[0],
            run_bucket=buckets[1],
            retried=0,
        )
    row.jobs += 1
    row.wait_sec += waited
    row.run_sec += ran
    row.retried += attempt.retry_id is not None


def _truncate(moment: datetime, span: timedelta) -> datetime:
    seconds = int(span.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)
