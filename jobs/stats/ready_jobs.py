"""Ready jobs of local workers: how many of them no running worker serves, and since when the oldest other one waits.

Counted by the database in a few rows, along the index of ready jobs, however many names there are.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, Case, Count, F, Min, Q, Value, When
from django.db.models.functions import Coalesce, Greatest

from jobs import db
from jobs.models import Gate, Job, LimitScope, Worker
from jobs.models.expressions import SqlLiteral
from jobs.models.worker import heartbeat_timeout
from jobs.policies.concurrency import SCOPE_COLUMNS
from jobs.stats.cache import RateLimitedCache

UNSERVED_TYPES_SHOWN = 5


@dataclass(frozen=True)
class ReadyJobs:
    """The ready jobs of local workers.

    `startable`: a running worker serves them, and none of their limits is paused; `oldest_at`: when the first was due.
    """

    startable: int = 0
    oldest_at: datetime | None = None
    unserved: int = 0
    unserved_since: datetime | None = None
    unserved_types: tuple[tuple[str, int], ...] = ()  # those with the most jobs


def is_online(worker: Worker, now: datetime) -> bool:
    return worker.heartbeat_at > now - heartbeat_timeout()


def is_claiming(worker: Worker, now: datetime) -> bool:
    """Return whether a worker claims jobs and sends heartbeats."""
    return is_online(worker, now) and worker.is_claiming


def count_ready(workers: Iterable[Worker], paused: Collection[tuple[str, str]], now: datetime) -> ReadyJobs:
    """Count the ready jobs, given the online workers and the paused limits (scope, key). It may be cached."""
    serves = [worker.serves for worker in workers if is_claiming(worker, now)]
    key = (db.alias(), tuple(sorted({json.dumps(served, sort_keys=True) for served in serves})), tuple(sorted(paused)))
    return _cache.get(key, lambda: _query(serves, paused), lambda counts: counts.startable + counts.unserved)


_cache: RateLimitedCache[ReadyJobs] = RateLimitedCache()
clear_cache = _cache.clear


def _query(serves: Iterable[dict[str, Any]], paused: Collection[tuple[str, str]]) -> ReadyJobs:
    unserved = {"is_served": _flag(_served_by(serves))}
    rows: Any = Job.objects.ready().order_by().annotate(**unserved, is_paused=_flag(_paused_by(paused)))
    due = Min(Greatest(Coalesce(F("not_before"), F("created_at")), F("created_at")))
    totals = {
        (is_served, is_paused): (jobs, since)
        for is_served, is_paused, jobs, since in rows.values_list("is_served", "is_paused").annotate(
            n=Count("pk"), since=due
        )
    }
    startable, oldest_at = totals.get((True, False), (0, None))
    not_served = [total for (is_served, _is_paused), total in totals.items() if not is_served]
    if not not_served:
        return ReadyJobs(startable, oldest_at)
    types = rows.filter(is_served=False).values_list("job_type").annotate(n=Count("pk")).order_by("-n", "job_type")
    since = min(since for _jobs, since in not_served)
    jobs = sum(jobs for jobs, _since in not_served)
    return ReadyJobs(startable, oldest_at, jobs, since, tuple(types[:UNSERVED_TYPES_SHOWN]))


def unserved_jobs(workers: Iterable[Worker], now: datetime) -> Q:
    """Return the condition of the ready jobs that `ReadyJobs.unserved` counts."""
    ready = Q(gate=SqlLiteral(Gate.READY), remote=False)
    served = _served_by(worker.serves for worker in workers if is_claiming(worker, now))
    return ready if served is None else ready & ~served


def _flag(condition: Q | None) -> Any:
    false = Value(False, BooleanField())
    return false if condition is None else Case(When(condition, then=Value(True)), default=false)


def _served_by(serves: Iterable[dict[str, Any]]) -> Q | None:
    """Return the condition of `jobs.explain.facts.can_run` for any of these workers."""
    condition: Q | None = None
    for served in {json.dumps(served, sort_keys=True): served for served in serves}.values():
        part = Q(job_type__in=served.get("types", ()))
        if served.get("resources") is not None:
            part &= Q(resource__in=served["resources"])
        if excluded := served.get("excluded_resources"):
            part &= ~Q(resource__in=excluded)
        if served.get("tenant") is not None:
            part &= Q(tenant=served["tenant"])
        condition = part if condition is None else condition | part
    return condition


def _paused_by(paused: Collection[tuple[str, str]]) -> Q | None:
    if any(scope == LimitScope.GLOBAL for scope, _key in paused):
        return Q(pk__isnull=False)
    condition: Q | None = None
    for scope, column in SCOPE_COLUMNS.items():
        if keys := sorted(key for paused_scope, key in paused if paused_scope == scope):
            part = Q(**{f"{column}__in": keys})
            condition = part if condition is None else condition | part
    return condition
