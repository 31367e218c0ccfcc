"""Count the jobs ahead of a waiting job, and predict its start; predict nothing where it cannot be known.

A start is predicted for a local job that no person has to act for, where only limits and the queue's order decide. Run
times are the measured ones of the job type, else those that were expected at the submission; a running job ends by its
progress, if it reports one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from django.db.models import Sum
from django.db.models.functions import Now

from jobs import db
from jobs.explain.facts import Facts, can_run, to_limit
from jobs.explain.reasons import NEEDS_OPERATOR, Reason
from jobs.models import Gate, JobMinute
from jobs.policies.concurrency import NO_BUCKETS, Flow, Limit, count_free
from jobs.services import admission
from jobs.states import Status
from jobs.stats.queries import ActiveJobs

AHEAD_LIMIT = 10_000  # the count of jobs ahead stops here
MAX_WAIT_SEC = 365.0 * 86_400  # a later start is not predicted: its time might be beyond the calendar
MEASURED_WINDOW = timedelta(hours=1)  # of the run times that predictions are made from
DUE_WINDOW = timedelta(minutes=1)  # jobs that become due in it before a scheduled job may still run then
IN_QUEUE, IN_TARGET, DUE_BEFORE = 0, 1, 2  # where a job is ahead


@dataclass(frozen=True)
class Forecast:
    """`ahead`: the number of jobs ahead, up to AHEAD_LIMIT. `waits_in_queue`: these are why it does not start now."""

    ahead: int | None = None
    waits_in_queue: bool = False
    start_at: datetime | None = None


class JobsAhead(NamedTuple):
    """Jobs of one flow that are ahead: in the queue, in the same target, or due shortly before a scheduled job."""

    place: int
    flow: Flow
    jobs: int
    expected_sec: float | None  # the mean of their `expected_duration_sec`


def make_forecast(facts: Facts, reasons: Sequence[Reason]) -> Forecast:
    """Count the jobs ahead, and predict the start if it can be known."""
    job, codes = facts.job, {reason.code for reason in reasons}
    if job.status != Status.QUEUED:
        return Forecast()
    rows = _list_ahead(facts)
    is_scheduled = job.gate == Gate.TIME
    ahead = 0 if is_scheduled else min(sum(row.jobs for row in rows), AHEAD_LIMIT)
    if job.remote:
        return Forecast(ahead, waits_in_queue=ahead > 0 and not codes)
    queue = _Queue(facts, [row for row in rows if row.place == IN_QUEUE])
    waits_in_queue = queue.delays_start and not is_scheduled and not codes & {*NEEDS_OPERATOR, "target_busy"}
    # Other targets may have such a job ahead of it: their number is known when they are made ready.
    is_made_ready_next = job.gate == Gate.LANE and "target_busy" not in codes
    is_unknown = facts.is_denied or facts.reservations or is_made_ready_next or not admission.is_plain()
    if codes & NEEDS_OPERATOR or is_unknown:
        return Forecast(ahead, waits_in_queue)
    wait_sec = _estimate_wait_sec(facts, queue, rows)
    if wait_sec is None or wait_sec > MAX_WAIT_SEC:
        return Forecast(ahead, waits_in_queue)
    start_at = facts.now + timedelta(seconds=wait_sec)
    return Forecast(ahead, waits_in_queue, max(start_at, job.not_before or start_at))


def _estimate_wait_sec(facts: Facts, queue: _Queue, rows: Sequence[JobsAhead]) -> float | None:
    """Return the wait for a slot, or for the running job of its target, and then for the jobs ahead in its target."""
    if sum(row.jobs for row in rows if row.place == DUE_BEFORE and queue.can_take_slot(row.flow)) >= queue.capacity:
        return None
    run_times = RunTimes()
    waits = [0.0 if queue.has_slot_now else queue.estimate_wait_sec(run_times), queue.estimate_rate_wait_sec()]
    for other in facts.lane:
        if other.status == Status.RUNNING:
            is_resumed = int(other.fence > other.attempt)
            running = (other.expected_duration_sec, other.progress, other.dispatched_at, is_resumed)
            waits.append(run_times.estimate_rest(ActiveJobs(Flow.of(other), "", 1, *running), facts.now))
        elif other.gate == Gate.TIME and other.pk != facts.job.pk:  # a retry in its backoff holds the target
            waits.append(None)
    in_target = [row for row in rows if row.place == IN_TARGET]
    waits_in_target = [run_times.get(row.flow.job_type, row.expected_sec, row.jobs) for row in in_target]
    known = [wait for wait in waits if wait is not None]
    known_in_target = [wait for wait in waits_in_target if wait is not None]
    if len(known) < len(waits) or len(known_in_target) < len(waits_in_target):
        return None
    return max(known) + sum(known_in_target)


class _Queue:
    """The slots that a job can start in, and the jobs of the queue ahead of it that can start before it."""

    def __init__(self, facts: Facts, ahead: Iterable[JobsAhead]) -> None:
        self._facts = facts
        self._in_use = facts.queue.in_use
        self._limits = [to_limit(row, facts.now) for row in facts.queue.limits]
        self._own_limits = self._limits_of(facts.flow)
        self._ahead = [row for row in ahead if self._can_start(row.flow)]
        self._competing = [
            row
            for row in self._ahead
            if self.can_take_slot(row.flow) or any(limit.names(row.flow) for limit in self._own_limits)
        ]

    @property
    def can_start_now(self) -> bool:
        return self.has_slot_now and self.estimate_rate_wait_sec() == 0

    def estimate_rate_wait_sec(self) -> float | None:
        """Return the wait for the rates of the job's limits, after the jobs ahead that are under them.

        None if it depends on the tokens that jobs ahead will use.
        """
        waits = [0.0]
        for limit in self._own_limits:
            ahead = sum(row.jobs for row in self._ahead if limit.names(row.flow))
            if limit.buckets.tokens is not None and ahead:
                return None
            waits.append(limit.buckets.seconds_to_start(ahead))
        return max(waits)

    @cached_property
    def has_slot_now(self) -> bool:
        """Return whether a slot is left for the job after all that are ahead of it have started; rates aside."""
        if self._count_starts(row for row in self._ahead if self.can_take_slot(row.flow)) >= self._facts.free_slots:
            return False
        for limit in self._own_limits:
            free = count_free(replace(limit, buckets=NO_BUCKETS), self._in_use)
            if free is not None and self._count_starts(row for row in self._ahead if limit.names(row.flow)) >= free:
                return False
        return True

    @property
    def delays_start(self) -> bool:
        """Return whether the job cannot start now and others compete with it for the next slot."""
        return bool(self._competing) and not self.can_start_now

    @property
    def capacity(self) -> int:
        """Return how many jobs like this one can run at once."""
        return min([self._facts.slots, *(limit.max for limit in self._own_limits if limit.max is not None)])

    def can_take_slot(self, flow: Flow) -> bool:
        """Return whether jobs of this flow can start in the same slots."""
        return any(can_run(worker, flow) for worker in self._facts.workers)

    def estimate_wait_sec(self, run_times: RunTimes) -> float | None:
        """Simulate the slots. None if a run time is unknown, or if jobs ahead have other workers or other tight
        limits than this job: then they start in other slots, too, or only in some of these.
        """
        facts, capacity = self._facts, self.capacity
        tight_limits, workers = self._tight_limits_of(facts.flow), self._find_workers(facts.flow)
        for row in self._competing:
            if self._tight_limits_of(row.flow) != tight_limits or self._find_workers(row.flow) != workers:
                return None
        processes = {worker.identity.process_key for worker in facts.workers}
        running = [
            row
            for row in facts.queue.active
            if (tight_limits or row.process in processes) and all(limit.names(row.flow) for limit in tight_limits)
        ]
        count = sum(row.jobs for row in running)
        others = sum(row.jobs for row in facts.queue.active if row.process in processes and row not in running)
        available = [
            facts.slots - others,
            *(maximum - self._in_use.of(limit) + count for limit, maximum in tight_limits.items()),
        ]
        if count > capacity or min(available) < capacity:
            return None
        free_at = [0.0] * (capacity - count)
        for active in running:
            if (rest_sec := run_times.estimate_rest(active, facts.now)) is None:
                return None
            free_at += [rest_sec] * active.jobs
        heapq.heapify(free_at)
        for row in self._competing:
            if (run_sec := run_times.get(row.flow.job_type, row.expected_sec)) is None:
                return None
            for _job in range(row.jobs):
                heapq.heapreplace(free_at, free_at[0] + run_sec)
        return free_at[0] or None if free_at else None  # not at once: something else keeps it from starting

    def _can_start(self, flow: Flow) -> bool:
        """Return whether jobs of this flow can start without a person: a worker runs them, and no limit is paused."""
        return bool(self._find_workers(flow)) and not any(limit.paused for limit in self._limits_of(flow))

    def _count_starts(self, rows: Iterable[JobsAhead]) -> int:
        """Count those of these jobs that their own limits let start now."""
        return sum(min([row.jobs, *self._free_of(row.flow)]) for row in rows)

    def _free_of(self, flow: Flow) -> list[int]:
        free = (count_free(limit, self._in_use) for limit in self._limits_of(flow))
        return [count for count in free if count is not None]

    def _limits_of(self, flow: Flow) -> list[Limit]:
        return [limit for limit in self._limits if limit.names(flow)]

    def _tight_limits_of(self, flow: Flow) -> dict[Limit, int]:
        """Return the limits that let fewer jobs run than all workers have slots, with their maximum."""
        limits, slots = self._limits_of(flow), sum(worker.slots for worker in self._facts.queue.workers)
        return {limit: limit.max for limit in limits if limit.max is not None and limit.max < slots}

    def _find_workers(self, flow: Flow) -> set[Any]:
        return {worker.pk for worker in self._facts.queue.workers if can_run(worker, flow)}


class RunTimes:
    """Mean run times by job type, measured within MEASURED_WINDOW and read once; cancelled jobs were cut short."""

    @cached_property
    def _measured(self) -> dict[str, float]:
        minutes = JobMinute.objects.filter(minute__gt=Now() - MEASURED_WINDOW, run_bucket__gte=0)
        minutes = minutes.exclude(outcome=Status.CANCELLED)
        rows = minutes.order_by().values_list("job_type").annotate(Sum("run_sec"), Sum("jobs"))
        return {job_type: run_sec / jobs for job_type, run_sec, jobs in rows if jobs}

    def get(self, job_type: str, expected_sec: float | None, jobs: int = 1) -> float | None:
        """Return the seconds that so many jobs take one after the other; None if they were never measured."""
        run_sec = self._measured.get(job_type, expected_sec)
        return None if run_sec is None else run_sec * jobs

    def estimate_rest(self, active: ActiveJobs, now: datetime) -> float | None:
        """Return the seconds until running jobs end: by their progress, else they are taken to be half done.

        None if it cannot be known: their run time was never measured, or a part of it was a pause.
        """
        run_sec = self.get(active.flow.job_type, active.expected_sec)
        ran_sec = 0.0 if active.started_at is None else max((now - active.started_at).total_seconds(), 0.0)
        if active.resumed:
            return None
        if active.progress and ran_sec:
            return ran_sec * max(1 / active.progress - 1, 0.0)
        if run_sec is None:
            return None
        return run_sec / 2 if ran_sec < run_sec else ran_sec


def _list_ahead(facts: Facts) -> list[JobsAhead]:
    """List the jobs ahead, by flow. Each part of the statement scans an index, AHEAD_LIMIT entries at most."""
    job = facts.job
    convert = db.connection().ops.adapt_datetimefield_value
    created_at, pk = convert(job.created_at), db.to_stored_uuid(job.pk)
    ahead: list[tuple[str, list[Any]]] = [
        ("priority > %s", [job.priority]),
        ("priority = %s AND position < %s", [job.priority, job.position]),
        (
            "priority = %s AND position = %s AND (created_at < %s OR (created_at = %s AND id < %s))",
            [job.priority, job.position, created_at, created_at, pk],
        ),
    ]
    ready: tuple[str, list[Any]] = ("gate = 3 AND NOT remote", [])
    if job.remote:
        ready = ("gate = 3 AND remote AND addon_id = %s", [job.addon_id])
    places = [(IN_QUEUE, *ready)]
    if job.lane_id is not None:
        lane_id = db.to_stored_uuid(job.lane_id)
        places = [(IN_QUEUE, f"{ready[0]} AND (lane_id IS NULL OR lane_id <> %s)", [*ready[1], lane_id])]
        places.append((IN_TARGET, "lane_id = %s AND gate IN (2, 3)", [lane_id]))
    parts = [
        (place, f"{where} AND {condition} ORDER BY priority DESC, position, created_at, id", [*values, *own_values])
        for place, where, values in places
        for condition, own_values in ahead
    ]
    due_at = job.recheck_at or job.not_before
    if job.gate == Gate.TIME and due_at is not None:
        due = "coalesce(recheck_at, not_before)"
        first = " OR ".join(f"({condition})" for condition, _values in ahead)
        where = f"gate = 1 AND NOT remote AND {due} > %s AND {due} <= %s AND id <> %s AND ({due} < %s OR {first})"
        times = [convert(due_at - DUE_WINDOW), convert(due_at), pk, convert(due_at)]
        own_values = [value for _condition, values in ahead for value in values]
        parts.append((DUE_BEFORE, f"{where} ORDER BY {due}", [*times, *own_values]))
    sql = " UNION ALL ".join(_PART.format(place, where, AHEAD_LIMIT) for place, where, _values in parts)
    with db.connection().cursor() as cursor:
        cursor.execute(_COUNT.format(sql), [value for _place, _where, values in parts for value in values])
        return [JobsAhead(place, Flow(*flow), jobs, expected) for place, *flow, jobs, expected in cursor.fetchall()]


# Each part in the order of its index: else the server may search all jobs ever for those that are queued.
_PART = """SELECT * FROM (
    SELECT {:d} AS place, tenant, job_type, resource, addon_id, expected_duration_sec FROM jobscheduler_job
    WHERE {} LIMIT {}) part"""
_COUNT = """SELECT place, tenant, job_type, resource, addon_id, count(*), avg(expected_duration_sec) FROM ({}) ahead
    GROUP BY place, tenant, job_type, resource, addon_id"""
