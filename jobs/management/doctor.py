"""What `manage.py doctor` looks at: each examination says what it found, and never raises.

Other apps have examinations of their own: their AppConfig's `examine`.
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
from django.db import Error as DatabaseTrouble
from django.db.migrations.executor import MigrationExecutor
from django.db.models.functions import Now
from django.templatetags.static import static
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import db
from jobs.checks import TAG
from jobs.conf import conf, configured, read
from jobs.engine.database import MISSING
from jobs.engine.process_identity import Identity
from jobs.models import ConcurrencyLimit, Gate, Job, Worker, WorkerState
from jobs.models.limit import LimitScope
from jobs.triggers import missing_triggers

SKEW_SEC, FRESH_SEC, LONG_SEC = 5.0, 30.0, 60.0
STYLESHEET = "jobs/console.css"


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


def examine() -> Findings:
    """All of them; without a database, or one that lacks tables, what can be said without."""
    yield from _settings()
    yield from _static()
    if read(configured())[1]:  # nothing of ours can be asked with such settings
        return
    other_apps = [look for config in apps.get_app_configs() if callable(look := getattr(config, "examine", None))]
    for look in (_database, _migrations, _triggers, _clock, _workers, _limits, _leases, *other_apps):
        found = list(_guarded(look))
        yield from found
        if look in (_database, _migrations) and any(each.level == Level.ERROR for each in found):
            return


def examine_own_worker() -> Findings:
    """What a worker's container asks of itself: what others got wrong does not make it unwell."""
    if read(configured())[1]:
        yield from _settings()
    else:
        yield from _guarded(_own_worker)


def _guarded(look: Callable[[], Findings]) -> Findings:
    try:
        yield from look()
    except (DatabaseTrouble, *MISSING) as error:
        yield Finding(look.__name__.strip("_"), Level.ERROR, _("could not be looked at: %s") % str(error).strip())


def _settings() -> Findings:
    found = checks.run_checks(tags=[TAG], include_deployment_checks=True)
    for each in found:
        level = Level.ERROR if each.level >= checks.ERROR else Level.WARNING
        yield Finding("settings", level, f"{each.msg} ({each.id})", each.hint or "")
    if not found:
        yield Finding("settings", Level.OK, _("the checks have nothing to say"))


def _static() -> Findings:
    """Where static files are collected, the console's style must have been."""
    if not apps.is_installed("django.contrib.staticfiles"):
        message = _("django.contrib.staticfiles is not installed; the console has no style")
        yield Finding("static", Level.WARNING, message)
        return
    try:
        address, found = static(STYLESHEET), finders.find(STYLESHEET)
    except ImproperlyConfigured as error:
        yield Finding("static", Level.ERROR, _("could not be looked at: %s") % str(error).strip())
        return
    except ValueError:  # a manifest that does not know it
        hint = _("Run `manage.py collectstatic`.")
        yield Finding("static", Level.ERROR, _("the console's files have not been collected"), hint)
        return
    if found is None:
        yield Finding("static", Level.ERROR, _("%s cannot be found") % STYLESHEET)
    elif not getattr(staticfiles_storage, "is_collected", True) and not settings.DEBUG:
        hint = _("Run `manage.py collectstatic`: browsers may then keep them, and they are sent compressed.")
        yield Finding("static", Level.WARNING, _("not collected; served as they lie in the apps"), hint)
    else:
        yield Finding("static", Level.OK, address)


def _database() -> Findings:
    began = time.monotonic()
    try:
        with db.connection().cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DatabaseTrouble as error:
        yield Finding("database", Level.ERROR, _("does not answer: %s") % str(error).strip())
        return
    took_ms = (time.monotonic() - began) * 1000
    version = ".".join(map(str, db.connection().get_database_version()))
    yield Finding("database", Level.OK, f"{db.connection().vendor} {version}, {took_ms:.0f} ms")


def _migrations() -> Findings:
    executor = MigrationExecutor(db.connection())
    leaves = [leaf for leaf in executor.loader.graph.leaf_nodes() if leaf[0].startswith("jobscheduler_")]
    missing = [f"{migration.app_label} {migration.name}" for migration, _back in executor.migration_plan(leaves)]
    if missing:
        yield Finding("migrations", Level.ERROR, ", ".join(missing), _("Run `manage.py migrate`."))
    else:
        yield Finding("migrations", Level.OK, _("all applied"))


def _triggers() -> Findings:
    if missing := missing_triggers(db.connection()):
        told = _("missing: %s") % ", ".join(missing)
        yield Finding("triggers", Level.ERROR, told, _("Run `manage.py migrate`: it puts them back."))
    else:
        yield Finding("triggers", Level.OK, _("all in place"))


def _clock() -> Findings:
    if db.is_sqlite():
        yield Finding("clock", Level.OK, _("SQLite's clock is this host's"))
        return
    with db.connection().cursor() as cursor:
        began = datetime.now(UTC)
        cursor.execute("SELECT clock_timestamp()")
        theirs: datetime = cursor.fetchone()[0]
    apart = (theirs - began).total_seconds()
    told = _("the database's clock differs from this host's by %.1f s") % apart
    if abs(apart) < SKEW_SEC:
        yield Finding("clock", Level.OK, told)
    else:
        yield Finding("clock", Level.WARNING, told, _("Leases do not mind; what people read does. Run NTP on both."))


def _workers() -> Findings:
    live = _live_workers()
    slots = sum(worker.slots for worker in live)
    if live:
        told = ngettext("%(n)d heard from, %(slots)d slot", "%(n)d heard from, %(slots)d slots", slots)
        yield Finding("workers", Level.OK, told % {"n": len(live), "slots": slots})
    else:
        ready = Job.objects.filter(gate=Gate.READY, remote=False)
        is_urgent = ready.filter(created_at__lt=Now() - timedelta(seconds=LONG_SEC)).exists()
        level = Level.ERROR if is_urgent else Level.WARNING
        yield Finding("workers", level, _("none was heard from"), _("Start `manage.py worker`."))
    stuck = sum(worker.stuck for worker in live)
    if stuck:
        hint = _("Their handlers ignore stops. Restart those workers, or use --executor process.")
        yield Finding("workers", Level.WARNING, ngettext("%d slot is stuck", "%d slots are stuck", stuck) % stuck, hint)
    versions = sorted({worker.version for worker in live})
    if len(versions) > 1:
        yield Finding("workers", Level.WARNING, _("of several versions: %s") % ", ".join(versions))


def _own_worker() -> Findings:
    here = Identity.mine().host
    if names := [worker.name for worker in _live_workers() if worker.host == here]:
        yield Finding("workers", Level.OK, ", ".join(names))
    else:
        yield Finding("workers", Level.ERROR, _("no worker of this host was heard from"))


def _limits() -> Findings:
    rows = ConcurrencyLimit.objects.filter(scope=LimitScope.GLOBAL)
    most = next(iter(rows.values_list("max", flat=True)), conf.LIMITS.overall)
    slots = sum(worker.slots for worker in _live_workers())
    said = {"max": _("unlimited") if most is None else most, "slots": slots}
    if most is not None and slots > most:
        told = _("workers have %(slots)d slots, the global limit is %(max)s: the rest stay idle") % said
        yield Finding("limits", Level.WARNING, told, _("Raise LIMITS or lower --concurrency."))
    else:
        yield Finding("limits", Level.OK, _("global limit %(max)s, %(slots)d slots") % said)


def _leases() -> Findings:
    over = Now() - timedelta(seconds=conf.LEASE_SEC + conf.GRACE_SEC)
    lost = Job.objects.running().filter(lease_expires_at__lt=over).count()
    if lost:
        told = ngettext("%d job waits to be recovered", "%d jobs wait to be recovered", lost) % lost
        yield Finding("leases", Level.ERROR, told, _("Run `manage.py recover`, or a worker."))
    else:
        yield Finding("leases", Level.OK, _("none is over"))


def _live_workers() -> list[Worker]:
    fresh = Now() - timedelta(seconds=max(conf.LEASE_SEC, FRESH_SEC))
    return list(Worker.objects.filter(heartbeat_at__gt=fresh).exclude(state=WorkerState.STOPPED))
