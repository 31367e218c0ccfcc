"""`manage.py worker`: claim jobs and run them. Its log has a line for each record, as text or JSON."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError
from django.db.migrations.executor import MigrationExecutor

from jobs import checks, db, triggers
from jobs.errors import InvalidInput
from jobs.log_formats import JsonFormatter, TextFormatter
from jobs.management import base
from jobs.registry import registry
from jobs.services import workers
from jobs.services.workers import ServedJobs, WorkerOptions
from jobs.validation import fields


class Command(BaseCommand):
    requires_system_checks = [checks.TAG]
    help = "Claim jobs and run them until SIGTERM or Ctrl-C; another one, a second later, stops immediately."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", help="A name that stays the same after a restart; default <hostname>-<pid>.")
        parser.add_argument("--concurrency", default="1", help="Number of jobs that run at once (default 1).")
        parser.add_argument("--tenant", help="Only jobs of this tenant.")
        parser.add_argument("--types", help="Only jobs of these types, separated by commas.")
        parser.add_argument("--resources", help="Only jobs of these resources, separated by commas.")
        parser.add_argument("--executor", choices=["thread", "process"], default="thread", help="Where handlers run.")
        parser.add_argument("--burst", action="store_true", help="Exit when no job is left to run.")
        parser.add_argument("--no-housekeeping", action="store_true", help="Do not run the periodic maintenance tasks.")
        parser.add_argument("--log-format", choices=["human", "json"], default="human", help="The format of log lines.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            worker_options = self._parse_options(options)
        except InvalidInput as error:
            raise CommandError(str(error), returncode=base.BAD_INPUT) from None
        self._require_enough_connections(worker_options)
        try:
            self._require_usable_database()
            other = workers.find_running_duplicate(worker_options.name)
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {str(error).strip()}", returncode=1) from None
        if other is not None:
            message = f"A worker named {other.name} is already running (host {other.host}, pid {other.pid})."
            raise CommandError(message, returncode=base.BAD_INPUT)
        _configure_logging(options["log_format"], verbosity=options["verbosity"])
        exit_code = workers.run_worker(worker_options)
        logging.shutdown()
        if exit_code:
            raise SystemExit(exit_code)

    def _parse_options(self, options: dict[str, Any]) -> WorkerOptions:
        name = options["name"]
        if name is not None and set(fields.parse_text(name, "--name", max_length=100, single_line=True)) & set("@#:"):
            raise InvalidInput("--name", "must not contain @, # or :")
        return WorkerOptions(
            name=name,
            concurrency=base.parse_whole_number(options["concurrency"], "--concurrency", 1, 1000),
            serves=_parse_serves(options["types"], options["resources"], options["tenant"]),
            executor=options["executor"],
            burst=options["burst"],
            maintenance=not options["no_housekeeping"],
        )

    def _require_usable_database(self) -> None:
        problem = checks.find_sqlite_problem(db.alias())
        if problem is not None:
            raise CommandError(problem, returncode=base.BAD_INPUT)
        executor = MigrationExecutor(db.connection())
        if executor.migration_plan(executor.loader.graph.leaf_nodes("jobscheduler_jobs")):
            raise CommandError("Migrations are not applied; run `manage.py migrate` first.", returncode=1)
        if missing := triggers.find_missing_triggers(db.connection()):
            message = f"Triggers are missing: {', '.join(missing)}. Run `manage.py migrate`, which creates them."
            raise CommandError(message, returncode=1)

    def _require_enough_connections(self, options: WorkerOptions) -> None:
        """Raise if Django's pool has fewer connections than handler threads."""
        problem = checks.find_pool_problem(options.concurrency) if options.executor == "thread" else None
        if problem is not None:
            raise CommandError(problem, returncode=base.BAD_INPUT)


def _parse_serves(types: str | None, resources: str | None, tenant: str | None) -> ServedJobs:
    known_types = registry.local_names()
    job_types = known_types if types is None else _parse_names(types, "--types")
    for name in job_types:
        if name not in known_types:
            raise InvalidInput("--types", f"no handler is registered for the job type {name!r}")
    return ServedJobs(
        types=tuple(job_types),
        resources=None if resources is None else tuple(_parse_names(resources, "--resources")),
        tenant=None if tenant is None else fields.parse_tenant(tenant, "--tenant"),
        skip_unserved=(types, resources, tenant) != (None, None, None),
    )


def _parse_names(value: str, field: str) -> list[str]:
    return [fields.parse_identifier(name, field) for name in base.parse_names([value], field)]


def _configure_logging(style: str, *, verbosity: int) -> None:
    """Send our log lines to standard error in this style, and not to the site's own handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logger = logging.getLogger("jobs")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
