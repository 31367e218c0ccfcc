"""The health checks of `manage.py doctor`: each yields findings, and none raises.

Other apps have checks of their own: the method `examine` of their AppConfig.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from django.apps import apps
from django.conf import settings
from django.contrib.staticfiles import finders
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DbError
from django.db.migrations.executor import MigrationExecutor
from django.db.models.functions import Now
from django.templatetags.static import static
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import db
from jobs.checks import TAG
from jobs.conf import conf, get_raw_settings, read_settings
from jobs.models import ConcurrencyLimit, Gate, Job, Worker, WorkerState
from jobs.models.limit import LimitScope
from jobs.models.worker import heartbeat_timeout
from jobs.notifications import Listener, check_delivery
from jobs.outages import OUTAGE_ERRORS
from jobs.process_identity import ProcessIdentity
from jobs.triggers import find_missing_triggers

MAX_SKEW_SEC, LONG_WAIT_SEC = 5.0, 60.0
STYLESHEET = "jobs/console.css"
WORKER_CONNECTIONS = 8  # that a worker needs besides those of its handlers, at most; docs/connections.md counts them


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    topic: str
    level: Level
    message: str
    hint: str = ""


Findings = Iterator[Finding]


def run_checks() -> Findings:
    """Run all checks; without a database or its tables, only those that do not need them."""
    yield from _check_settings()
    yield from _check_static()
    if read_settings(get_raw_settings()).problems:  # the other checks need valid settings
        return
    in_apps = [check for config in apps.get_app_configs() if callable(check := getattr(config, "examine", None))]
    for check in (
        _check_database,
        _check_migrations,
        _check_triggers,
        _check_clock,
        _check_notifications,
        _check_connections,
        _check_workers,
        _check_limits,
        _check_leases,
        *in_apps,
    ):
        findings = list(_catch_errors(check))
        yield from findings
        is_prerequisite = check in (_check_database, _check_migrations)
        if is_prerequisite and any(finding.level == Level.ERROR for finding in findings):
            return


def check_own_worker() -> Findings:
    """Check only the worker of this host, so that the problems of others do not restart its container."""
    if read_settings(get_raw_settings()).problems:
        yield from _check_settings()
    else:
        yield from _catch_errors(_check_own_worker)


def _catch_errors(check: Callable[[], Findings]) -> Findings:
    """Run a check, with an error of the database as a finding."""
    try:
        yield from check()
    except (DbError, *OUTAGE_ERRORS) as error:
        topic = check.__name__.removeprefix("_check_")
        yield Finding(topic, Level.ERROR, _("could not be checked: %s") % str(error).strip())


def _check_settings() -> Findings:
    messages = checks.run_checks(tags=[TAG], include_deployment_checks=True)
    for message in messages:
        level = Level.ERROR if message.level >= checks.ERROR else Level.WARNING
        yield Finding("settings", level, f"{message.msg} ({message.id})", message.hint or "")
    if not messages:
        yield Finding("settings", Level.OK, _("all checks passed"))


def _check_static() -> Findings:
    """Check that the console's stylesheet can be served, collected or not."""
    if not apps.is_installed("django.contrib.staticfiles"):
        message = _("django.contrib.staticfiles is not installed; the console has no style")
        yield Finding("static", Level.WARNING, message)
        return
    try:
        url, path = static(STYLESHEET), finders.find(STYLESHEET)
    except ImproperlyConfigured as error:
        yield Finding("static", Level.ERROR, _("could not be checked: %s") % str(error).strip())
        return
    except ValueError:  # the manifest does not contain it
        hint = _("Run `manage.py collectstatic`.")
        yield Finding("static", Level.ERROR, _("the console's files have not been collected"), hint)
        return
    if path is None:
        yield Finding("static", Level.ERROR, _("%s cannot be found") % STYLESHEET)
    elif not getattr(staticfiles_storage, "is_collected", True) and not settings.DEBUG:
        hint = _("Run `manage.py collectstatic`: browsers can then cache them, and they are sent compressed.")
        yield Finding("static", Level.WARNING, _("not collected; served from the apps' own folders"), hint)
    else:
        yield Finding("static", Level.OK, url)


def _check_database() -> Findings:
    started = time.monotonic()
    try:
        with db.connection().cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DbError as error:
        yield Finding("database", Level.ERROR, _("does not answer: %s") % str(error).strip())
        return
    duration_ms = (time.monotonic() - started) * 1000
    version = ".".join(map(str, db.connection().get_database_version()))
    yield Finding("database", Level.OK, f"{db.connection().vendor} {version}, {duration_ms:.0f} ms")


def _check_migrations() -> Findings:
    executor = MigrationExecutor(db.connection())
    leaves = [leaf for leaf in executor.loader.graph.leaf_nodes() if leaf[0].startswith("jobscheduler_")]
    missing = [f"{migration.app_label} {migration.name}" for migration, _back in executor.migration_plan(leaves)]
    if missing:
        yield Finding("migrations", Level.ERROR, ", ".join(missing), _("Run `manage.py migrate`."))
    else:
        yield Finding("migrations", Level.OK, _("all applied"))


def _check_triggers() -> Findings:
    if missing := find_missing_triggers(db.connection()):
        message = _("missing: %s") % ", ".join(missing)
        yield Finding("triggers", Level.ERROR, message, _("Run `manage.py migrate`, which creates them."))
    else:
        yield Finding("triggers", Level.OK, _("all in place"))


def _check_clock() -> Findings:
    if db.clock_may_jump():
        yield Finding("clock", Level.OK, _("SQLite uses this host's clock"))
        return
    with db.connection().cursor() as cursor:
        host_time = datetime.now(UTC)
        cursor.execute("SELECT clock_timestamp()")
        database_time: datetime = cursor.fetchone()[0]
    skew = (database_time - host_time).total_seconds()
    message = _("the database's clock differs from this host's by %.1f s") % skew
    if abs(skew) < MAX_SKEW_SEC:
        yield Finding("clock", Level.OK, message)
    else:
        hint = _("Leases are not affected, but displayed times are. Run NTP on both hosts.")
        yield Finding("clock", Level.WARNING, message, hint)


def _check_notifications() -> Findings:
    """Check that notifications arrive: they do not through a transaction pooler."""
    if not db.has_server(db.connection()):
        yield Finding("notifications", Level.OK, _("SQLite has none; workers look for commits of other processes"))
    elif not Listener.can_listen():
        message = _("not used (DISABLE_SERVER_SIDE_CURSORS); workers look for jobs every %g s") % conf.POLL_SEC
        yield Finding("notifications", Level.OK, message)
    elif check_delivery():
        yield Finding("notifications", Level.OK, _("arrive"))
    else:
        message = _("do not arrive: a transaction pooler seems to be in between; workers look for jobs every %g s")
        hint = _("Set DISABLE_SERVER_SIDE_CURSORS to True for this database, or connect to PostgreSQL directly.")
        yield Finding("notifications", Level.WARNING, message % conf.POLL_SEC, hint)


def _check_connections() -> Findings:
    """Compare the connections that the running workers may need with those that the server allows."""
    if not db.has_server(db.connection()):
        yield Finding("connections", Level.OK, _("SQLite has no limit"))
        return
    with db.connection().cursor() as cursor:
        cursor.execute(_CONNECTIONS)
        allowed, used = cursor.fetchone()
    workers = _list_workers()
    slots = sum(worker.slots for worker in workers)
    needed = slots + WORKER_CONNECTIONS * len(workers)
    own = {"own": WORKER_CONNECTIONS, "n": len(workers)}
    values = {"used": used, "allowed": allowed, "needed": needed, "slots": slots, **own}
    message = _("%(used)d of %(allowed)d in use; workers may need %(needed)d: %(slots)d slots + %(own)d × %(n)d")
    if needed > allowed:
        hint = _("Raise max_connections, lower --concurrency, or put a pooler in between: docs/connections.md.")
        yield Finding("connections", Level.WARNING, message % values, hint)
    else:
        yield Finding("connections", Level.OK, message % values)


# Some are reserved for superusers and, since PostgreSQL 16, for roles with pg_use_reserved_connections.
_CONNECTIONS = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0),
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
"""


def _check_workers() -> Findings:
    workers = _list_workers()
    slots = sum(worker.slots for worker in workers)
    if workers:
        message = ngettext("%(n)d running, %(slots)d slot", "%(n)d running, %(slots)d slots", slots)
        yield Finding("workers", Level.OK, message % {"n": len(workers), "slots": slots})
    else:
        ready = Job.objects.filter(gate=Gate.READY, remote=False)
        is_urgent = ready.filter(created_at__lt=Now() - timedelta(seconds=LONG_WAIT_SEC)).exists()
        level = Level.ERROR if is_urgent else Level.WARNING
        yield Finding("workers", level, _("none is running"), _("Start `manage.py worker`."))
    stuck = sum(worker.stuck for worker in workers)
    if stuck:
        hint = _("Their handlers ignore stop requests. Restart those workers, or use --executor process.")
        yield Finding("workers", Level.WARNING, ngettext("%d slot is stuck", "%d slots are stuck", stuck) % stuck, hint)
    # Containers of one machine have host names of their own, but share its boot.
    if db.is_sqlite() and len({worker.boot_id for worker in workers}) > 1:
        hosts = ", ".join(sorted({worker.host for worker in workers}))
        hint = _("SQLite is for one machine. Use PostgreSQL, or run all workers on the machine that has the file.")
        yield Finding("workers", Level.ERROR, _("several machines share a SQLite database: %s") % hosts, hint)
    versions = sorted({worker.version for worker in workers})
    if len(versions) > 1:
        yield Finding("workers", Level.WARNING, _("of several versions: %s") % ", ".join(versions))


def _check_own_worker() -> Findings:
    host = ProcessIdentity.current().host
    if names := [worker.name for worker in _list_workers() if worker.host == host]:
        yield Finding("workers", Level.OK, ", ".join(names))
    else:
        yield Finding("workers", Level.ERROR, _("no worker is running on this host"))


def _check_limits() -> Findings:
    rows = ConcurrencyLimit.objects.filter(scope=LimitScope.GLOBAL)
    maximum = next(iter(rows.values_list("max", flat=True)), conf.LIMITS.overall.max)
    slots = sum(worker.slots for worker in _list_workers())
    values = {"max": _("unlimited") if maximum is None else maximum, "slots": slots}
    if maximum is not None and slots > maximum:
        message = _("workers have %(slots)d slots, but the global limit is %(max)s: the other slots stay idle") % values
        yield Finding("limits", Level.WARNING, message, _("Raise LIMITS or lower --concurrency."))
    else:
        yield Finding("limits", Level.OK, _("global limit %(max)s, %(slots)d slots") % values)


def _check_leases() -> Findings:
    recovery_due = Now() - timedelta(seconds=conf.LEASE_SEC + conf.GRACE_SEC)
    expired = Job.objects.running().filter(lease_expires_at__lt=recovery_due).count()
    if expired:
        message = ngettext("%d job has an expired lease", "%d jobs have an expired lease", expired) % expired
        yield Finding("leases", Level.ERROR, message, _("Run `manage.py recover`, or start a worker."))
    else:
        yield Finding("leases", Level.OK, _("none is expired"))


def _list_workers() -> list[Worker]:
    """Return the workers with recent heartbeats."""
    recent = Worker.objects.filter(heartbeat_at__gt=Now() - heartbeat_timeout())
    return list(recent.exclude(state=WorkerState.STOPPED))
