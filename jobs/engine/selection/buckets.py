"""The token buckets of limits with a rate: read them after the lock, settle what was used, take for what starts.

A claim that holds the locks of the limits owns the buckets: it reads the clock after it got the locks, so that no
claim refills a bucket twice. A job's holder never locks a limit. What it uses is in its own row; the next claim
compares it with the `TokenSpend` that the job's start wrote, and takes the difference from the buckets. So nothing is
lost, and nothing stays reserved, however a job ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple
from uuid import UUID

from jobs.engine.sql.limits import LimitRow, SpendRow, read_clock, read_spends
from jobs.models import ConcurrencyLimit, TokenSpend
from jobs.policies.concurrency import NO_BUCKETS, Flow
from jobs.rates import Buckets, make_buckets


class Start(NamedTuple):
    """A job or a direct call that starts. `token_limit` None: it may use any number."""

    id: UUID
    flow: Flow
    token_limit: int | None
    tokens_used: int = 0

    @property
    def reserved(self) -> int:
        return 0 if self.token_limit is None else max(self.token_limit - self.tokens_used, 0)


class BucketRound:
    """The buckets of one round, settled. Only the holder of the limits' locks may call `take`."""

    def __init__(self, connection: Any, rows: Sequence[LimitRow]) -> None:
        self._rows = [row for row in rows if row.rate or row.token_rate]
        self._spends = read_spends(connection) if any(row.token_rate for row in rows) else []
        self._now = read_clock(connection)
        self._due = {spend.id: _count_due(spend) for spend in self._spends}
        self._buckets = {(row.scope, row.key): self._settle(row) for row in self._rows}

    def of(self, row: LimitRow) -> Buckets:
        """Return the buckets of a limit."""
        return self._buckets.get((row.scope, row.key), NO_BUCKETS)

    def take(self, starts: Sequence[Start]) -> None:
        """Take what these starts need, and store the buckets.

        A job that was active when the spends were read, and has returned to the queue since, keeps its spend.
        """
        held = {spend.id for spend in self._spends if spend.active}
        starts = [start._replace(token_limit=None) if start.id in held else start for start in starts]
        ended = [spend.id for spend in self._spends if not spend.active]
        changed = [spend for spend in self._spends if spend.active and self._due[spend.id] != spend.taken]
        is_settling = bool(ended or changed)
        for row in self._rows:
            own = [start for start in starts if _applies(row, start.flow)]
            is_back = row.bucket_at is not None and row.bucket_at > self._now
            if own or is_back or (is_settling and row.token_rate):
                self._store(row, own)
        if ended:
            TokenSpend.objects.filter(pk__in=ended).delete()
        spends = [
            _build_spend(spend.id, Flow.of(spend), spend.reserved, self._due[spend.id], spend.used_before)
            for spend in changed
        ]
        spends += [
            _build_spend(start.id, start.flow, start.reserved, start.reserved, start.tokens_used)
            for start in starts
            if start.id not in held and self._has_token_rate(start.flow)
        ]
        if spends:
            TokenSpend.objects.bulk_create(
                spends,
                update_conflicts=True,
                unique_fields=["id"],
                update_fields=["reserved", "taken", "used_before"],
            )

    def _settle(self, row: LimitRow) -> Buckets:
        buckets = make_buckets(row, self._now)
        if buckets.tokens is None:
            return buckets
        used = sum(self._due[spend.id] - spend.taken for spend in self._spends if _applies(row, Flow.of(spend)))
        return replace(buckets, tokens=buckets.tokens.take(used))

    def _store(self, row: LimitRow, starts: Sequence[Start]) -> None:
        buckets = self.of(row)
        fields: dict[str, Any] = {"bucket_at": self._now}
        if buckets.starts is not None:
            fields["rate_level"] = buckets.starts.take(len(starts)).level
        if buckets.tokens is not None:
            fields["token_level"] = buckets.tokens.take(sum(start.reserved for start in starts)).level
        ConcurrencyLimit.objects.filter(pk=row.id).update(**fields)

    def _has_token_rate(self, flow: Flow) -> bool:
        return any(row.token_rate and _applies(row, flow) for row in self._rows)


def delete_spends() -> None:
    """Delete what no bucket needs any more, because no limit has a token rate."""
    if not ConcurrencyLimit.objects.exclude(token_rate="").exists():
        TokenSpend.objects.all().delete()


def _count_due(spend: SpendRow) -> int:
    """Return what a job has to take in total: at least its reserve while it runs, or if its holder was lost.

    A deleted job keeps what it took.
    """
    if spend.used is None:
        return spend.taken
    return max(spend.reserved, spend.used) if spend.active or spend.lost else spend.used


def _applies(row: LimitRow, flow: Flow) -> bool:
    return row.key == flow.key(row.scope)


def _build_spend(spend_id: UUID, flow: Flow, reserved: int, taken: int, used_before: int) -> TokenSpend:
    return TokenSpend(pk=spend_id, **asdict(flow), reserved=reserved, taken=taken, used_before=used_before)
