"""Choose which ready jobs start next, where more than the queue's order decides: limits, admission, fair shares.

Claims of workers and offers to remote workers choose here, each in the transaction that starts the jobs: candidates,
admission, locks, decisions. The limits are locked first (waiting), then jobs (skipping locked ones), so a transaction
that holds a job's lock never waits for a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from jobs.actors import SCHEDULER
from jobs.conf import conf
from jobs.engine.selection import admission, fair_share, limits
from jobs.engine.selection.buckets import Start
from jobs.engine.slots import leases
from jobs.engine.sql.candidates import Filter, ReadyJob, find_across_flows, find_in_window
from jobs.engine.sql.claim import Claim
from jobs.models import Job, JobEvent
from jobs.policies.concurrency import NO_BUCKETS, SCOPE_COLUMNS, Flow, Limit, count_free, seconds_to_start
from jobs.states import EventKind, Status

MAX_CONSIDERED = 1000  # jobs that one round decides about
ADMISSION_BATCH = 50  # extra candidates per search where admission may deny any of them


def is_plain() -> bool:
    """Return whether only limits and the queue's order decide which jobs start: every policy is the built-in one."""
    return limits.has_builtin_policy() and admission.has_open_policy() and not fair_share.is_enabled()


class SelectionRound:
    """One selection. Create it first in its transaction: it waits for the limits and counts the active jobs."""

    def __init__(self, connection: Any, wanted: Filter, index: Filter | None = None, *, remote: bool = False) -> None:
        """Prepare a round over ready jobs that are `wanted`. `index` is the condition that an index starts with."""
        self._connection, self._remote = connection, remote
        self._index = index or Filter()
        self._wanted = self._index & wanted
        usage = limits.lock_limits()
        self.limits, self._in_use, self._buckets = usage.limits, usage.in_use, usage.buckets
        self._flows: dict[UUID, Flow] = {}  # of the chosen jobs
        leases.notify_waiting_calls(self.limits, self._in_use)
        self._admission = None if admission.has_open_policy() else admission.AdmissionRound()
        self._fair_share = (
            fair_share.FairShareRound(connection, self._wanted, remote=remote) if fair_share.is_enabled() else None
        )

    @property
    def has_denied(self) -> bool:
        """Return whether admission denied a job."""
        return self._admission is not None and bool(self._admission.denied)

    @property
    def is_saturated(self) -> bool:
        """Return whether a limit is full, or a job was not admitted. Rates do not count: it is known when they pass."""
        counts = (replace(limit, buckets=NO_BUCKETS) for limit in self.limits if not limit.paused)
        return any(count_free(limit, self._in_use) == 0 for limit in counts) or self.has_denied

    def seconds_to_start(self, applies: Callable[[Limit], bool]) -> float | None:
        """Return the seconds until a rate that now prevents starts lets the next job start; None if none does."""
        waits = (seconds_to_start(limit, self._in_use) for limit in self.limits if applies(limit) and not limit.paused)
        return min((wait for wait in waits if wait > 0), default=None)

    @property
    def cost_in_use(self) -> int:
        """Return the cost units that admission counts as used."""
        return self._admission.cost_in_use if self._admission is not None else 0

    def count_startable(self, count: int) -> int | None:
        """Return how many of the first ready jobs may start, whatever they are; None if that depends on which."""
        buckets = ((limit.scope, limit.buckets) for limit in self.limits)
        if any(rates.tokens is not None or (rates.starts is not None and scope == "addon") for scope, rates in buckets):
            return None  # it depends on what they may use, or on fields that a claim does not return
        free_slots = {limit: count_free(limit, self._in_use) for limit in self.limits}
        count = min(
            [count, *(free for limit, free in free_slots.items() if limit.scope == "global" and free is not None)]
        )
        scoped = (free for limit, free in free_slots.items() if limit.scope != "global")
        return count if all(free is None or free >= count for free in scoped) else None

    def choose(self, count: int) -> list[UUID]:
        """Choose up to `count` jobs, in order. Jobs under a full limit and denied jobs are passed over."""
        policy = conf.policy("CONCURRENCY_POLICY")
        find = self._find_candidates if self._fair_share is None else self._fair_share.find_candidates
        extra = ADMISSION_BATCH if self._admission is not None else 0
        full = [limit for limit in self.limits if count_free(limit, self._in_use) == 0]
        chosen: list[UUID] = []
        considered: set[UUID] = set()
        while len(chosen) < count and len(considered) < MAX_CONSIDERED:
            candidates = find(min(count + 2 * len(considered) + extra, count + MAX_CONSIDERED), full)
            new = [candidate for candidate in candidates if candidate.id not in considered]
            if self._admission is not None:
                self._admission.load_jobs([candidate.id for candidate in new])
            refused = False
            for candidate in new:
                if len(chosen) == count:
                    break
                considered.add(candidate.id)
                blocked = policy.blocked(candidate.flow, self.limits, self._in_use)
                if blocked is not None:
                    full.append(blocked.limit)
                if blocked is not None or (self._admission is not None and not self._admission.admits(candidate.id)):
                    refused = True
                    continue
                chosen.append(candidate.id)
                self._flows[candidate.id] = candidate.flow
                start = Start(candidate.id, candidate.flow, candidate.token_limit, candidate.tokens_used)
                self._in_use.add(candidate.flow, start.reserved)
            if not refused:
                break
        return chosen

    def take_tokens(self, started: Iterable[Claim | Job]) -> None:
        """Take what the started jobs need from the buckets of their rates. Only jobs that do start count."""
        if self._buckets is None:
            return
        starts = [
            Start(job.id, self._flows.get(job.id) or _flow_of(job), job.token_limit, job.tokens_used) for job in started
        ]
        self._buckets.take(starts)
        for start in starts:
            if start.id not in self._flows:
                self._in_use.add(start.flow, start.reserved)

    def record_decisions(self, job_ids: Sequence[UUID]) -> None:
        """Record the decisions of this round. These jobs, which the caller has locked, are about to start."""
        reasons = {} if self._fair_share is None else self._fair_share.charge(job_ids)
        if self._admission is not None:
            self._admission.record_decisions({job_id: reasons.get(job_id, "") for job_id in job_ids})
        elif reasons:
            JobEvent.objects.bulk_create(
                JobEvent(
                    job_id=job_id,
                    kind=EventKind.ADMITTED,
                    from_status=Status.QUEUED,
                    to_status=Status.QUEUED,
                    reason=reason,
                    actor_kind=SCHEDULER.kind,
                    actor_name=SCHEDULER.name,
                )
                for job_id, reason in reasons.items()
            )

    def _find_candidates(self, count: int, full: Sequence[Limit]) -> list[ReadyJob]:
        """Find ready jobs under no full limit: in a window first; if these are too few, flow by flow."""
        wanted = self._wanted & exclude_limits(full)
        if self._remote and not self._index.sql:  # no index has the ready jobs of several addons in dispatch order
            return find_across_flows(self._connection, count, wanted, remote=True)
        index = Filter("remote" if self._remote else "NOT remote") & self._index
        jobs = find_in_window(self._connection, count, index, wanted)
        return jobs if len(jobs) == count else find_across_flows(self._connection, count, wanted, remote=self._remote)


def exclude_limits(full: Sequence[Limit]) -> Filter:
    """Return the condition for jobs that none of these limits applies to."""
    clauses: list[str] = []
    params: list[str] = []
    for limit in dict.fromkeys(full):
        if limit.scope == "global":
            clauses.append("1 = 0")
        elif limit.scope in SCOPE_COLUMNS:
            clauses.append(f"{SCOPE_COLUMNS[limit.scope]} <> %s")
            params.append(limit.key)
    return Filter(" AND ".join(clauses), params)


def _flow_of(job: Claim | Job) -> Flow:
    """Return the flow of a job that was started without a choice; then no rate of an addon is in force."""
    return Flow(job.tenant, job.job_type, job.resource, "")
