"""Predict the starts of the jobs at the head of the queue: one simulation of slots and limits for all of them.

As in `forecast`, nothing is predicted where it cannot be known: behind a job whose run time was never measured, while a
direct call has the next slot, or where more than limits and the queue's order decide.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from jobs.explain.facts import QueueFacts, can_run, load_queue, to_limit
from jobs.explain.forecast import MAX_WAIT_SEC, RunTimes
from jobs.models import Gate, Job
from jobs.models.job import JobQuerySet
from jobs.policies.concurrency import Flow, InUse, Limit, count_free
from jobs.services import admission

END_LIMIT = 2000  # ends of jobs that the simulation waits for


def list_ready_jobs() -> JobQuerySet:
    """Return the jobs that workers may claim, of all tenants and priorities, in dispatch order."""
    return Job.objects.filter(gate=Gate.READY, remote=False).in_dispatch_order().defer("params", "checkpoint")


def predict_starts(jobs: Sequence[Job], now: datetime) -> dict[UUID, datetime]:
    """Return when each of the first jobs of the queue is expected to start, as far as it can be known."""
    queue = load_queue()
    if not jobs or queue.calls or not admission.is_plain():
        return {}
    simulation = _Simulation(queue, now)
    starts: dict[UUID, datetime] = {}
    waiting = list(jobs)
    for _end in range(END_LIMIT):
        started = {job.pk for job in waiting if simulation.start(job)}
        starts |= dict.fromkeys(started, now + timedelta(seconds=simulation.clock_sec))
        waiting = [job for job in waiting if job.pk not in started]
        if not waiting or not simulation.wait_for_end():
            break
    return starts


@dataclass(order=True)
class _End:
    at_sec: float
    worker: int | None = field(compare=False)
    flow: Flow = field(compare=False)


class _Simulation:
    """Slots and limits as they are now."""

    def __init__(self, queue: QueueFacts, now: datetime) -> None:
        self.clock_sec = 0.0
        self._workers = queue.workers
        self._free = [max(worker.slots - worker.stuck - queue.count_busy(worker), 0) for worker in queue.workers]
        self._limits = [to_limit(row, now) for row in queue.limits]
        self._active: Counter[Limit] = Counter()
        # The starts that pauses, rates and tokens allow now; when rates allow more is not simulated.
        starts_left = ((limit, count_free(replace(limit, max=None), InUse())) for limit in self._limits)
        self._starts_left = {limit: count for limit, count in starts_left if count is not None}
        self._run_times = RunTimes()
        self._ends: list[_End] = []
        self._has_unknown_end = False
        processes = {worker.identity.process_key: number for number, worker in enumerate(queue.workers)}
        for active in queue.active:
            self._active.update(dict.fromkeys(self._limits_of(active.flow), active.jobs))
            worker = processes.get(active.process)
            if worker is None and not self._limits_of(active.flow):
                continue  # it takes nothing from the queue
            rest_sec = self._run_times.estimate_rest(active, now)
            for _job in range(active.jobs):
                self._add_end(worker, active.flow, rest_sec)

    def start(self, job: Job) -> bool:
        """Start a job in a free slot of a worker that runs it, if all of its limits allow it."""
        flow = Flow.of(job)
        number = next((n for n, worker in enumerate(self._workers) if self._free[n] and can_run(worker, flow)), None)
        if number is None or self._is_blocked(flow):
            return False
        self._free[number] -= 1
        self._active.update(self._limits_of(flow))
        for limit in self._limits_of(flow):
            if limit in self._starts_left:
                self._starts_left[limit] -= 1
        self._add_end(number, flow, self._run_times.get(job.job_type, job.expected_duration_sec))
        return True

    def wait_for_end(self) -> bool:
        """Go on to the next end of a job. Return False if there is none, or no time after it could be known."""
        if not self._ends or self._has_unknown_end or self._ends[0].at_sec > MAX_WAIT_SEC:
            return False
        end = heapq.heappop(self._ends)
        self.clock_sec = end.at_sec
        self._active.subtract(self._limits_of(end.flow))
        if end.worker is not None:
            self._free[end.worker] += 1
        return True

    def _is_blocked(self, flow: Flow) -> bool:
        for limit in self._limits_of(flow):
            if limit.max is not None and self._active[limit] >= limit.max:
                return True
            if self._starts_left.get(limit, 1) < 1:
                self._has_unknown_end |= not limit.is_closed
                return True
        return False

    def _add_end(self, worker: int | None, flow: Flow, sec: float | None) -> None:
        if sec is None:
            self._has_unknown_end = True
        else:
            heapq.heappush(self._ends, _End(self.clock_sec + sec, worker, flow))

    def _limits_of(self, flow: Flow) -> list[Limit]:
        return [limit for limit in self._limits if limit.names(flow)]
