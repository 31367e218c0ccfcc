"""Alerts at the top of the dashboard: conditions that need an operator, each with a link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from django.contrib.admin import AdminSite
from django.db import DatabaseError
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import db
from jobs.admin.columns import list_url
from jobs.admin.formatting import format_rough_duration
from jobs.conf import get_raw_settings, read_settings
from jobs.models import ConcurrencyLimit, Job, Worker, WorkerState
from jobs.roles import APP_LABELS
from jobs.states import Status
from jobs.stats import queries
from jobs.stats.live_counts import JobCounts, LiveCount
from jobs.stats.queries import WorkerCounts

LATE_AFTER = timedelta(minutes=5)  # that a ready job has waited
MIN_FAILURES, FAILURE_RATIO = 10, 2  # in the last hour; against the day before


@dataclass(frozen=True)
class Alert:
    message: str
    url: str = ""
    link_text: str = ""
    is_bad: bool = True


AlertSource = Callable[[AdminSite, HttpRequest], Iterator[Alert]]
_sources: list[AlertSource] = []


def alert_from(source: AlertSource) -> None:
    """Register a source of alerts of another app."""
    if source not in _sources:
        _sources.append(source)


def find_alerts(
    site: AdminSite,
    request: HttpRequest,
    counts: JobCounts,
    workers: WorkerCounts,
    hour: Counter[str],
    day: Counter[str],
) -> Iterator[Alert]:
    """Yield what needs attention; `hour` and `day` count how jobs ended in that time."""
    jobs_url = list_url(site, Job)
    for problem in read_settings(get_raw_settings()).problems[:3]:
        yield Alert(str(problem))
    if missing := _known_migrations() - _applied_migrations():
        names = ", ".join(sorted(f"{app} {name}" for app, name in missing)[:3])
        params = {"n": len(missing), "names": names}
        yield Alert(_("The database lacks %(n)d migrations (%(names)s): run migrate.") % params)
    yield from _worker_alerts(site, counts, workers)
    if stuck := queries.count_expired_leases():
        message = ngettext("%d job runs without a sign of life.", "%d jobs run without a sign of life.", stuck) % stuck
        yield Alert(message, f"{jobs_url}?attention=stuck", _("Show"))
    if blocked := queries.count_blocked_targets():
        message = ngettext("%d target is blocked by a job that needs you.", "%d targets are blocked.", blocked)
        yield Alert(message % blocked, f"{jobs_url}?attention=blocking", _("Show"), is_bad=False)
    yield from _late_start_alerts(jobs_url, counts)
    yield from _failure_rate_alerts(jobs_url, hour, day)
    for source in _sources:
        yield from source(site, request)


@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    return frozenset(key for key in loader.disk_migrations if key[0] in APP_LABELS)


def _applied_migrations() -> set[tuple[str, str]]:
    """Return the applied migrations; all of them if the web's database role may not read their table."""
    rows = MigrationRecorder(db.connection()).migration_qs.filter(app__in=APP_LABELS)
    try:
        return set(rows.values_list("app", "name"))
    except DatabaseError:
        return set(_known_migrations())


def _worker_alerts(site: AdminSite, counts: JobCounts, workers: WorkerCounts) -> Iterator[Alert]:
    url = list_url(site, Worker) if site.is_registered(Worker) else ""
    waiting = sum(count.jobs for count in counts.live if count.is_due)
    if waiting and not workers.states[WorkerState.RUNNING]:
        yield Alert(_("No worker is running, and %d jobs wait.") % waiting, url, _("Workers"))
    if silent := workers.states[queries.SILENT]:
        message = ngettext("%d worker has not been heard of.", "%d workers have not been heard of.", silent) % silent
        yield Alert(message, url, _("Workers"), is_bad=False)
    if workers.stuck:
        yield Alert(_("%d slots of workers hang in jobs that do not stop.") % workers.stuck, url, _("Workers"))


def _late_start_alerts(jobs_url: str, counts: JobCounts) -> Iterator[Alert]:
    paused = set(ConcurrencyLimit.objects.filter(paused=True).values_list("scope", "key"))
    ready = [count.since for count in counts.live if count.is_ready and not _limit_keys(count) & paused]
    age = timedelta(seconds=counts.age_sec(min(ready))) if ready else timedelta(0)
    if age > LATE_AFTER:
        message = _("The oldest job that could start has been waiting for %s.") % format_rough_duration(age)
        yield Alert(message, f"{jobs_url}?attention=late", _("Show"), is_bad=False)


def _limit_keys(count: LiveCount) -> set[tuple[str, str]]:
    """Return the limits whose pause makes these jobs wait on purpose."""
    return {("global", ""), ("job_type", count.job_type), ("resource", count.resource), ("addon", count.addon_id)}


def _failure_rate_alerts(jobs_url: str, hour: Counter[str], day: Counter[str]) -> Iterator[Alert]:
    """Compare the last hour with the rest of the day before it."""
    earlier = day - hour
    failed, failed_earlier = hour[Status.FAILED], earlier[Status.FAILED]
    if failed < MIN_FAILURES:
        return
    usual_rate = failed_earlier / earlier.total() if earlier.total() else 0.0
    if failed / hour.total() > FAILURE_RATIO * usual_rate:
        params = {"failed": failed, "all": hour.total()}
        message = _("%(failed)d of %(all)d jobs failed in the last hour, more than usual.") % params
        yield Alert(message, f"{jobs_url}?status=FAILED&ended=1h", _("Show"))
