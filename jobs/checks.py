"""System checks, tag "jobs": report at start-up what would fail later. Importing this module registers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from jobs import db, triggers
from jobs.conf import (
    FUNCTION_KEYS,
    POLICY_KEYS,
    ProblemKind,
    build_policy,
    get_raw_settings,
    import_function,
    read_settings,
)
from jobs.notifications import Listener, check_delivery

TAG = "jobs"
OUR_APPS = ("jobs", "schedules", "webhooks")
OUR_HOME = Path(__file__).resolve().parent.parent
SETTING_IDS = {ProblemKind.UNKNOWN: "jobs.E001", ProblemKind.INVALID: "jobs.E002", ProblemKind.HEARTBEAT: "jobs.E003"}
POLICY_METHODS = {
    "CONCURRENCY_POLICY": ("blocked",),
    "ADMISSION_POLICY": ("decide",),
    "RETRY_POLICY": ("decide",),
    "GROUP_FAILURE_POLICY": ("decide",),
    "FAIRNESS_POLICY": ("aged", "share"),
}
SQLITE_TIMEOUT_SEC = 20
# Commands whose arguments run code, read or replace the data, or grant access.
DANGEROUS_COMMANDS = frozenset(
    {
        *("shell", "dbshell", "runserver", "runscheduler", "test", "testserver", "startapp", "startproject"),
        *("createsuperuser", "changepassword", "ensureadmin", "createtoken", "createroles"),
        *("dumpdata", "loaddata", "flush", "backup", "migrate", "makemigrations", "squashmigrations"),
    }
)


@register(TAG)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Report unknown and invalid settings."""
    _, problems = read_settings(get_raw_settings())
    return [Error(problem.message, hint=problem.hint or None, id=SETTING_IDS[problem.kind]) for problem in problems]


@register(TAG)
def check_policies(**kwargs: Any) -> list[CheckMessage]:
    """Report policies and functions that cannot be imported, and policies that lack a method."""
    conf, _ = read_settings(get_raw_settings())
    problems = (find_policy_problem(key, getattr(conf, key)) for key in POLICY_KEYS)
    errors: list[CheckMessage] = [Error(problem, id="jobs.E004") for problem in problems if problem]
    for key in FUNCTION_KEYS:
        try:
            import_function(key, getattr(conf, key))
        except ImproperlyConfigured as error:
            errors.append(Error(str(error), id="jobs.E004"))
    return errors


@register(TAG)
def check_allowed_commands(**kwargs: Any) -> list[CheckMessage]:
    """Warn of commands that give every submitter of jobs the rights of the worker."""
    conf, _ = read_settings(get_raw_settings())
    dangerous = sorted(DANGEROUS_COMMANDS.intersection(conf.COMMAND_ALLOW)) if conf.SYSTEM_JOB_TYPES else []
    if not dangerous:
        return []
    message = f"COMMAND_ALLOW lets every token with the scope submit run {', '.join(dangerous)} with any arguments."
    hint = "Allow a command of your own instead, which does what is needed and takes no other arguments."
    return [checks.Warning(message, hint=hint, id="jobs.W006")]


@register(TAG)
def check_time_zones(**kwargs: Any) -> list[CheckMessage]:
    """Require USE_TZ."""
    message = "USE_TZ is False, but the times of jobs are stored with their time zone."
    return [] if settings.USE_TZ else [Error(message, hint="Set USE_TZ = True.", id="jobs.E005")]


@register(TAG)
def check_shadows(**kwargs: Any) -> list[CheckMessage]:
    """Report installed apps that have one of our import names but are not ours."""
    hint = "A site with a top-level package of that name cannot install Job Scheduler: rename one of the two."
    messages: list[CheckMessage] = []
    for config in apps.get_app_configs():
        if config.name in OUR_APPS and Path(config.path).resolve() != OUR_HOME / config.name:
            file = getattr(config.module, "__file__", None) or config.path
            reason = f"it is imported from {file}, not from {OUR_HOME}."
            messages.append(
                Error(f"The app {config.name!r} is not Job Scheduler's: {reason}", hint=hint, id="jobs.E006")
            )
    return messages


@register(TAG)
def check_sqlite(**kwargs: Any) -> list[CheckMessage]:
    """Warn of options of a SQLite database that a worker does not do well with."""
    problem = find_sqlite_problem(db.alias())
    warnings = [checks.Warning(problem, hint=SQLITE_HINT, id="jobs.W001")] if problem else []
    return [*warnings, *_check_sqlite_options(db.alias())]


@register(TAG)
def check_sqlite_clock(**kwargs: Any) -> list[CheckMessage]:
    """Require UTC: SQLite's own clock is in UTC, and times stored in another zone would not compare with it."""
    alias = db.alias()
    if db.sqlite_options(alias) is None or settings.DATABASES[alias].get("TIME_ZONE") in (None, "UTC"):
        return []
    message = f"The SQLite database {alias!r} stores times in another zone than UTC: leases would end at wrong times."
    return [Error(message, hint="Remove TIME_ZONE from this database.", id="jobs.E008")]


@register(checks.Tags.database)
def check_triggers(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Report missing triggers. Only a warning, because `migrate` runs this check before it installs them."""
    if db.alias() not in (databases or ()) or not (missing := triggers.find_missing_triggers(db.connection())):
        return []
    message = f"The database {db.alias()!r} lacks these triggers of Job Scheduler: {', '.join(missing)}."
    return [checks.Warning(message, hint="Run `manage.py migrate`, which creates them.", id="jobs.W005")]


@register(checks.Tags.database)
def check_history(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Report a development database from before the first release, whose migrations were rewritten."""
    if db.alias() not in (databases or ()):
        return []
    applied = MigrationRecorder(db.connection()).applied_migrations()
    if ("jobscheduler_jobs", "0001_jobs") not in applied:
        return []
    message = f"The database {db.alias()!r} has the migrations of a development version, which were rewritten."
    hint = "Recreate it: nothing that was released has these migrations."
    return [Error(message, hint=hint, id="jobs.E012")]


@register(checks.Tags.database)
def check_legacy_token(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn of a LEGACY_TOKEN that no request can use."""
    conf, _ = read_settings(get_raw_settings())
    if conf.LEGACY_TOKEN is None or db.alias() not in (databases or ()):
        return []
    from jobs.models import ApiToken  # commands import this module before the apps are loaded

    has_table = ApiToken._meta.db_table in db.connection().introspection.table_names()
    if not has_table or ApiToken.objects.usable().filter(prefix=conf.LEGACY_TOKEN).count() == 1:
        return []
    message = f"LEGACY_TOKEN names {conf.LEGACY_TOKEN}, which is no usable token: clients without one get 401."
    return [checks.Warning(message, hint="Name a token that has not expired and was not revoked.", id="jobs.W008")]


@register(checks.Tags.database)
def check_notifications(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn of a transaction pooler that the settings do not mention: notifications do not arrive through it."""
    if db.alias() not in (databases or ()) or not Listener.can_listen() or check_delivery():
        return []
    message = f"Notifications of the database {db.alias()!r} do not arrive: there seems to be a transaction pooler."
    hint = "Set DISABLE_SERVER_SIDE_CURSORS to True for this database, or connect to PostgreSQL directly."
    return [checks.Warning(message, hint=hint, id="jobs.W007")]


@register(TAG, deploy=True)
def check_sqlite_for_deployment(**kwargs: Any) -> list[CheckMessage]:
    """Require IMMEDIATE transactions of a SQLite database in a deployment."""
    problem = find_sqlite_problem(db.alias())
    return [Error(problem, hint=SQLITE_HINT, id="jobs.E007")] if problem else []


SQLITE_HINT = 'Set OPTIONS["transaction_mode"] = "IMMEDIATE" for this database.'


def find_sqlite_problem(alias: str) -> str | None:
    """Return why no worker may run on this database, or None. Reads its settings and opens no connection."""
    options = db.sqlite_options(alias)
    if options is None or str(options.get("transaction_mode")).upper() == "IMMEDIATE":
        return None
    return (
        f"The SQLite database {alias!r} does not begin its transactions IMMEDIATE: "
        'concurrent writers will fail with "database is locked".'
    )


def find_pool_problem(slots: int) -> str | None:
    """Return why Django's pool is too small for handlers in so many threads, or None.

    It serves the handlers alone: the worker's own threads connect outside of it.
    """
    size = db.pool_size()
    if size is None or size >= slots:
        return None
    return (
        f"Django's connection pool has {size} connections for each process, fewer than the {slots} handlers of "
        f'--concurrency. Set OPTIONS["pool"] = {{"max_size": {slots}}} or more.'
    )


def find_policy_problem(key: str, path: str | None) -> str | None:
    """Return why the policy of this setting cannot be used, or None."""
    try:
        policy = build_policy(key, path)
    except ImproperlyConfigured as error:
        return str(error)
    for method in POLICY_METHODS[key] if policy is not None else ():
        if not callable(getattr(policy, method, None)):
            return f"JOBSCHEDULER: {key} {path!r} cannot be used (it has no method `{method}`)."
    return None


def _check_sqlite_options(alias: str) -> Iterator[CheckMessage]:
    options = db.sqlite_options(alias)
    if options is None:
        return
    timeout = options.get("timeout", 5)
    if not isinstance(timeout, int | float) or timeout < SQLITE_TIMEOUT_SEC:
        message = f"The SQLite database {alias!r} waits {timeout} s for the write lock; a busy queue may need more."
        yield checks.Warning(message, hint=f'Set OPTIONS["timeout"] to {SQLITE_TIMEOUT_SEC} or more.', id="jobs.W002")
    name = str(connections[alias].settings_dict["NAME"])
    is_in_memory = ":memory:" in name or "mode=memory" in name
    pragmas = "".join(str(options.get("init_command", "")).lower().split())
    if not is_in_memory and "journal_mode=wal" not in pragmas:
        message = f"The SQLite database {alias!r} is not set to write-ahead logging: reads and writes block each other."
        hint = 'Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL".'
        yield checks.Warning(message, hint=hint, id="jobs.W003")
