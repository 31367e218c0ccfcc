"""Fair shares: within one priority, addons (or tenants) take turns by their weights.

Start-time fair queueing. Every share has an account of what it was served, in virtual time; whoever is furthest behind
goes first. Who was idle does not save up: an account never lags behind the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from jobs.conf import conf
from jobs.engine.maintenance import system_load
from jobs.engine.sql.candidates import Filter, ReadyJob, find_across_flows
from jobs.models import ShareAccount, SystemSnapshot
from jobs.policies.concurrency import Flow, Limit
from jobs.policies.fairness import MIN_WEIGHT, Share

KEY_LENGTH = 220
MAX_FLOWS = 500


class ShareCandidate(NamedTuple):
    id: UUID
    flow: Flow
    priority: int
    share: Share


def is_enabled() -> bool:
    policy = conf.policy("FAIRNESS_POLICY")
    return policy is not None and bool(getattr(policy, "shares", False))


class FairShareRound:
    """One round, under the lock of the system snapshot, which also keeps the accounts."""

    def __init__(self, connection: Any, wanted: Filter, *, remote: bool = False) -> None:
        self._policy = conf.policy("FAIRNESS_POLICY")
        self._connection, self._wanted, self._remote = connection, wanted, remote
        self._row = system_load.lock_row()
        self._found: list[ShareCandidate] = []

    def find_candidates(self, count: int, full: Sequence[Limit]) -> list[ReadyJob]:
        """Find ready jobs under no full limit, with turns within each priority."""
        from jobs.engine.selection import exclude_limits

        wanted = self._wanted & exclude_limits(full)
        found = find_across_flows(self._connection, count, wanted, remote=self._remote, flows=MAX_FLOWS)
        self._found = [self._to_ready(candidate) for candidate in found]
        served = _read_usage(each.share.key for each in self._found)
        turns = order_by_share(self._found, served, self._row.share_clock)[:count]
        return [ReadyJob(each.id, each.flow, each.priority) for each in turns]

    def charge(self, taken: Iterable[UUID]) -> dict[UUID, str]:
        """Charge the shares for what was taken. Returns why some of it went before others."""
        chosen = set(taken)
        self._charge_shares(each.share for each in self._found if each.id in chosen)
        return {each.id: f"fair share: the turn of {each.share.key}" for each in find_overtakers(self._found, chosen)}

    def _charge_shares(self, shares: Iterable[Share]) -> None:
        due = list(shares)
        if not due:
            return
        served = dict(_read_usage(share.key for share in due))
        clock = self._row.share_clock
        for share in due:
            clock = _charge_share(share, served, clock)
        rows = [ShareAccount(key=key, served=value) for key, value in sorted(served.items())]
        accounts = ShareAccount.objects.all()
        accounts.bulk_create(rows, update_conflicts=True, unique_fields=["key"], update_fields=["served"])
        SystemSnapshot.objects.filter(pk=self._row.pk).update(share_clock=clock)

    def _to_ready(self, candidate: ReadyJob) -> ShareCandidate:
        named: Share = self._policy.share(candidate.flow)
        share = Share(named.key[:KEY_LENGTH], max(named.weight, MIN_WEIGHT))
        return ShareCandidate(candidate.id, candidate.flow, candidate.priority, share)


def order_by_share(found: Sequence[ShareCandidate], served: Mapping[str, float], clock: float) -> list[ShareCandidate]:
    """The same jobs; those of one priority in the order of their shares' turns. `found` is in dispatch order."""
    accounts, ordered = dict(served), []
    for _priority, level in groupby(found, key=lambda each: each.priority):
        queues: dict[str, deque[ShareCandidate]] = {}
        for each in level:
            queues.setdefault(each.share.key, deque()).append(each)
        place = {key: n for n, key in enumerate(queues)}  # in a tie, whoever stands first
        while queues:
            key = min(queues, key=lambda key: (max(accounts.get(key, 0.0), clock), place[key]))
            head = queues[key].popleft()
            clock = _charge_share(head.share, accounts, clock)
            ordered.append(head)
            if not queues[key]:
                del queues[key]
    return ordered


def find_overtakers(found: Sequence[ShareCandidate], chosen: set[UUID]) -> list[ShareCandidate]:
    """Of those that were chosen, who went before an earlier one of the same priority and another share."""
    passed_over: dict[int, set[str]] = {}
    ahead: list[ShareCandidate] = []
    for each in found:
        if each.id not in chosen:
            passed_over.setdefault(each.priority, set()).add(each.share.key)
        elif passed_over.get(each.priority, set()) - {each.share.key}:
            ahead.append(each)
    return ahead


def delete_idle_accounts() -> int:
    """Accounts that are not ahead of the clock say nothing. Returns how many went."""
    clock = SystemSnapshot.objects.values_list("share_clock", flat=True).first()
    if clock is None:
        return 0
    idle = ShareAccount.objects.filter(served__lte=clock)
    return idle.delete()[0] if idle.exists() else 0


def _charge_share(share: Share, accounts: dict[str, float], clock: float) -> float:
    """One turn; returns the clock, which is when the turn began."""
    start = max(accounts.get(share.key, 0.0), clock)
    accounts[share.key] = start + 1.0 / share.weight
    return start


def _read_usage(keys: Iterable[str]) -> dict[str, float]:
    rows = ShareAccount.objects.filter(key__in=set(keys))
    return dict(rows.values_list("key", "served"))
