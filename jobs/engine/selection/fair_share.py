"""Fair shares: within one priority, the jobs of addons (or tenants) alternate by their weights.

This is start-time fair queueing. Every share has an account of its usage in virtual time; the share with the least
usage is next. An idle share saves nothing up: no account counts as less than the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from jobs.conf import conf
from jobs.engine.maintenance import system_load
from jobs.engine.sql.candidates import NO_LIMIT, Filter, ReadyJob, find_across_flows
from jobs.models import ShareAccount, SystemSnapshot
from jobs.policies.concurrency import Flow, Limit
from jobs.policies.fairness import MIN_WEIGHT, FairShare, Share

KEY_LENGTH = 220
MAX_FLOWS = 500


class ShareCandidate(NamedTuple):
    """A ready job with the share that it belongs to."""

    id: UUID
    flow: Flow
    priority: int
    share: Share
    token_limit: int | None = None
    tokens_used: int = 0


def is_enabled() -> bool:
    """Return whether the fairness policy has shares."""
    policy = conf.policy("FAIRNESS_POLICY")
    return policy is not None and bool(getattr(policy, "shares", False))


class FairShareRound:
    """One round, under the lock of the system snapshot, which guards the accounts, too."""

    def __init__(self, connection: Any, wanted: Filter, *, remote: bool = False) -> None:
        self._policy = conf.policy("FAIRNESS_POLICY")
        self._connection, self._wanted, self._remote = connection, wanted, remote
        self._row = system_load.lock_row()
        self._candidates: list[ShareCandidate] = []  # of the last search, in dispatch order

    def find_candidates(self, count: int, full: Sequence[Limit]) -> list[ReadyJob]:
        """Find ready jobs under no full limit, in the order of their shares within each priority."""
        from jobs.engine.selection import exclude_limits

        wanted = self._wanted & exclude_limits(full)
        # The first n jobs of a tenant or addon are in n of its flows at most; another policy may divide these.
        turns = count if type(self._policy).share is FairShare.share else NO_LIMIT
        jobs = find_across_flows(self._connection, count, wanted, remote=self._remote, flows=MAX_FLOWS, turns=turns)
        self._candidates = [self._to_candidate(job) for job in jobs]
        usage = _read_usage(candidate.share.key for candidate in self._candidates)
        ordered = order_by_share(self._candidates, usage, self._row.share_clock)[:count]
        return [ReadyJob(*job[:3], job.token_limit, job.tokens_used) for job in ordered]

    def charge(self, job_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Charge the shares of these jobs, which start. Return the reason for each that overtakes an earlier job."""
        chosen = set(job_ids)
        self._charge_shares([candidate.share for candidate in self._candidates if candidate.id in chosen])
        overtakers = find_overtakers(self._candidates, chosen)
        return {candidate.id: f"fair share: the turn of {candidate.share.key}" for candidate in overtakers}

    def _charge_shares(self, shares: Sequence[Share]) -> None:
        if not shares:
            return
        usage = dict(_read_usage(share.key for share in shares))
        clock = self._row.share_clock
        for share in shares:
            clock = _charge_share(share, usage, clock)
        rows = [ShareAccount(key=key, served=served) for key, served in sorted(usage.items())]
        accounts = ShareAccount.objects.all()
        accounts.bulk_create(rows, update_conflicts=True, unique_fields=["key"], update_fields=["served"])
        SystemSnapshot.objects.filter(pk=self._row.pk).update(share_clock=clock)

    def _to_candidate(self, job: ReadyJob) -> ShareCandidate:
        policy_share: Share = self._policy.share(job.flow)
        share = Share(policy_share.key[:KEY_LENGTH], max(policy_share.weight, MIN_WEIGHT))
        return ShareCandidate(job.id, job.flow, job.priority, share, job.token_limit, job.tokens_used)


def order_by_share(
    candidates: Sequence[ShareCandidate], usage: Mapping[str, float], clock: float
) -> list[ShareCandidate]:
    """Return the same jobs, those of one priority by the usage of their shares. `candidates` are in dispatch order."""
    new_usage, ordered = dict(usage), []
    for _priority, same_priority in groupby(candidates, key=lambda candidate: candidate.priority):
        queues: dict[str, deque[ShareCandidate]] = {}
        for candidate in same_priority:
            queues.setdefault(candidate.share.key, deque()).append(candidate)
        rank = {key: n for n, key in enumerate(queues)}  # in a tie, the share with the earliest job is next
        while queues:
            key = min(queues, key=lambda key: (max(new_usage.get(key, 0.0), clock), rank[key]))
            first = queues[key].popleft()
            clock = _charge_share(first.share, new_usage, clock)
            ordered.append(first)
            if not queues[key]:
                del queues[key]
    return ordered


def find_overtakers(candidates: Sequence[ShareCandidate], chosen: set[UUID]) -> list[ShareCandidate]:
    """Return the chosen jobs that start before an earlier one of the same priority and another share."""
    passed_over: dict[int, set[str]] = {}
    overtakers: list[ShareCandidate] = []
    for candidate in candidates:
        if candidate.id not in chosen:
            passed_over.setdefault(candidate.priority, set()).add(candidate.share.key)
        elif passed_over.get(candidate.priority, set()) - {candidate.share.key}:
            overtakers.append(candidate)
    return overtakers


def delete_idle_accounts() -> int:
    """Delete accounts that are not ahead of the clock, which decide nothing; return how many."""
    clock = SystemSnapshot.objects.values_list("share_clock", flat=True).first()
    if clock is None:
        return 0
    idle = ShareAccount.objects.filter(served__lte=clock)
    return idle.delete()[0] if idle.exists() else 0


def _charge_share(share: Share, usage: dict[str, float], clock: float) -> float:
    """Add one job to the usage of a share; return the clock, which is the virtual start time of that job."""
    start = max(usage.get(share.key, 0.0), clock)
    usage[share.key] = start + 1.0 / share.weight
    return start


def _read_usage(keys: Iterable[str]) -> dict[str, float]:
    rows = ShareAccount.objects.filter(key__in=set(keys))
    return dict(rows.values_list("key", "served"))
