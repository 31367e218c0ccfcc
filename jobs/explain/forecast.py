"""A job's place in the queue, and from measured durations when its turn may come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum
from django.db.models.functions import Now

from jobs import db
from jobs.explain.facts import Facts, as_limit
from jobs.explain.reasons import NEEDS_A_PERSON, Reason
from jobs.models import Gate, JobMinute
from jobs.states import Status

MOST = 10_000  # further than this nobody counts
MEASURED = timedelta(hours=1)


@dataclass(frozen=True)
class Outlook:
    ahead: int | None = None
    start_at: datetime | None = None


def of(facts: Facts, reasons: Iterable[Reason]) -> Outlook:
    job = facts.job
    if job.status != Status.QUEUED:
        return Outlook()
    ahead = _ahead(facts)
    count = min(sum(ahead.values()), MOST)
    if any(reason.code in NEEDS_A_PERSON for reason in reasons) or job.remote:
        return Outlook(count)
    seconds = _seconds(facts, ahead)
    if seconds is None:
        return Outlook(count)
    earliest = max([facts.now, *(at for at in (job.not_before, job.recheck_at) if at is not None)])
    return Outlook(count, earliest + timedelta(seconds=seconds))


def _seconds(facts: Facts, ahead: Mapping[str, int]) -> float | None:
    """What stands before it, and half of what runs now, shared among those who work."""
    hands = _hands(facts)
    working = _working(facts)
    if hands == 0:
        return None
    if not ahead and sum(working.values()) < hands:
        return 0.0
    means = _means({*ahead, *working})
    if not means:
        return None
    usual = sum(means.values()) / len(means)
    before = sum(count * means.get(kind, usual) for kind, count in ahead.items())
    running = sum(count * means.get(kind, usual) / 2 for kind, count in working.items())
    return (before + running) / hands


def _hands(facts: Facts) -> int:
    """How many jobs like this one may run at once: a lane has one hand."""
    if facts.job.lane_id is not None:
        return min(facts.slots, 1)
    return min([facts.slots, *(row.max for row in facts.limits if row.max is not None)])


def _working(facts: Facts) -> dict[str, int]:
    """What runs and must make room first."""
    if facts.job.lane_id is not None:
        return {each.job_type: 1 for each in facts.lane if each.status == Status.RUNNING}
    narrow = [as_limit(row) for row in facts.limits if row.max is not None]
    busy = max((facts.in_use.of(limit) for limit in narrow), default=sum(worker.busy for worker in facts.workers))
    return {facts.job.job_type: busy} if busy else {}


def _ahead(facts: Facts) -> dict[str, int]:
    """How many go first, by type: in its lane, or among all that are ready. Each part is a walk along an index."""
    job = facts.job
    if job.lane_id is not None:
        where, given = "lane_id = %s AND gate IN (2, 3)", [_key(job.lane_id)]
    elif job.gate == Gate.READY:
        where, given = f"gate = 3 AND {'remote' if job.remote else 'NOT remote'}", []
    else:
        return {}
    born = db.connection().ops.adapt_datetimefield_value(job.created_at)
    parts = [
        ("priority > %s", [job.priority]),
        ("priority = %s AND position < %s", [job.priority, job.position]),
        (
            "priority = %s AND position = %s AND (created_at < %s OR (created_at = %s AND id < %s))",
            [job.priority, job.position, born, born, _key(job.pk)],
        ),
    ]
    one = f"SELECT * FROM (SELECT job_type FROM jobscheduler_job WHERE {where} AND {{}} LIMIT {MOST}) part"  # noqa: S608 — our own words
    sql = " UNION ALL ".join(one.format(condition) for condition, _ in parts)
    params: list[Any] = [each for _, values in parts for each in (*given, *values)]
    with db.connection().cursor() as cursor:
        cursor.execute(f"SELECT job_type, count(*) FROM ({sql}) ahead GROUP BY job_type", params)  # noqa: S608
        return dict(cursor.fetchall())


def _means(types: Iterable[str]) -> dict[str, float]:
    """How long jobs of these types ran of late, in seconds; all types if none of them did."""
    lately = JobMinute.objects.filter(minute__gt=Now() - MEASURED, run_bucket__gte=0)
    rows = lately.order_by().values_list("job_type").annotate(Sum("run_sec"), Sum("jobs"))
    means = {kind: ran / jobs for kind, ran, jobs in rows if jobs}
    known = {kind: mean for kind, mean in means.items() if kind in set(types)}
    return known or means


def _key(value: Any) -> Any:
    return value.hex if db.is_sqlite() else value
