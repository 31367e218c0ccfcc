"""What somebody should look at now: only what is true, each with a link to where it can be mended."""

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
from jobs.admin.formatting import format_rough_duration, list_url
from jobs.conf import configured, read
from jobs.models import ConcurrencyLimit, Job, Worker, WorkerState
from jobs.roles import OURS
from jobs.states import Status
from jobs.stats import queries
from jobs.stats.live_counts import JobCounts, LiveCount
from jobs.stats.queries import WorkerCounts

LATE_AFTER = timedelta(minutes=5)  # for a job that could start at once
MIN_FAILURES, FAILURE_RATIO = 10, 2


@dataclass(frozen=True)
class Alert:
    message: str
    url: str = ""
    word: str = ""
    is_bad: bool = True


AlertSource = Callable[[AdminSite, HttpRequest], Iterator[Alert]]
_sources: list[AlertSource] = []


def alert_from(source: AlertSource) -> None:
    """Register what another app has to say at the top of the dashboard."""
    if source not in _sources:
        _sources.append(source)


def find_alerts(
    site: AdminSite,
    request: HttpRequest,
    counted: JobCounts,
    force: WorkerCounts,
    hour: Counter[str],
    day: Counter[str],
) -> Iterator[Alert]:
    jobs = list_url(site, Job)
    for problem in read(configured())[1][:3]:
        yield Alert(str(problem))
    if missing := _known_migrations() - _applied_migrations():
        names = ", ".join(sorted(f"{app} {name}" for app, name in missing)[:3])
        told = {"n": len(missing), "names": names}
        yield Alert(_("The database lacks %(n)d migrations (%(names)s): run migrate.") % told)
    yield from _worker_alerts(site, counted, force)
    if late := queries.count_expired_leases():
        message = ngettext("%d job runs without a sign of life.", "%d jobs run without a sign of life.", late) % late
        yield Alert(message, f"{jobs}?attention=stuck", _("Show"))
    if blocked := queries.count_blocked_targets():
        message = ngettext("%d target is blocked by a job that needs you.", "%d targets are blocked.", blocked)
        yield Alert(message % blocked, f"{jobs}?attention=blocking", _("Show"), is_bad=False)
    yield from _late_start_alerts(jobs, counted)
    yield from _failure_rate_alerts(jobs, hour, day)
    for source in _sources:
        yield from source(site, request)


@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    return frozenset(key for key in loader.disk_migrations if key[0] in OURS)


def _applied_migrations() -> set[tuple[str, str]]:
    """As far as we may know: whoever runs the web need not be allowed to read of migrations."""
    rows = MigrationRecorder(db.connection()).migration_qs.filter(app__in=OURS)
    try:
        return set(rows.values_list("app", "name"))
    except DatabaseError:
        return set(_known_migrations())


def _worker_alerts(site: AdminSite, counted: JobCounts, force: WorkerCounts) -> Iterator[Alert]:
    url = list_url(site, Worker) if site.is_registered(Worker) else ""
    waits = sum(kind.jobs for kind in counted.live if kind.is_due)
    if waits and not force.states[WorkerState.RUNNING]:
        yield Alert(_("No worker is running, and %d jobs wait.") % waits, url, _("Workers"))
    if silent := force.states[queries.SILENT]:
        told = ngettext("%d worker has not been heard of.", "%d workers have not been heard of.", silent) % silent
        yield Alert(told, url, _("Workers"), is_bad=False)
    if force.stuck:
        yield Alert(_("%d slots of workers hang in jobs that do not stop.") % force.stuck, url, _("Workers"))


def _late_start_alerts(jobs: str, counted: JobCounts) -> Iterator[Alert]:
    paused = set(ConcurrencyLimit.objects.filter(paused=True).values_list("scope", "key"))
    ready = [kind.since for kind in counted.live if kind.is_ready and not _limit_keys(kind) & paused]
    age = timedelta(seconds=counted.age_sec(min(ready))) if ready else timedelta(0)
    if age > LATE_AFTER:
        told = _("The oldest job that could start has been waiting for %s.") % format_rough_duration(age)
        yield Alert(told, f"{jobs}?attention=late", _("Show"), is_bad=False)


def _limit_keys(kind: LiveCount) -> set[tuple[str, str]]:
    """What a person may have paused, so that it waits as it should."""
    return {("global", ""), ("job_type", kind.job_type), ("resource", kind.resource), ("addon", kind.addon_id)}


def _failure_rate_alerts(jobs: str, hour: Counter[str], day: Counter[str]) -> Iterator[Alert]:
    """The last hour against the day before it."""
    earlier = day - hour
    failed, before = hour[Status.FAILED], earlier[Status.FAILED]
    if failed < MIN_FAILURES:
        return
    usual = before / earlier.total() if earlier.total() else 0.0
    if failed / hour.total() > FAILURE_RATIO * usual:
        told = {"failed": failed, "all": hour.total()}
        message = _("%(failed)d of %(all)d jobs failed in the last hour, more than usual.") % told
        yield Alert(message, f"{jobs}?status=FAILED&ended=1h", _("Show"))
