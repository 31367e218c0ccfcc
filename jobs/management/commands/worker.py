"""`manage.py worker`: claim jobs and run them. Its log has a line for each record, as text or JSON."""

from __future__ import annotations

import logging
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError
from django.db.migrations.executor import MigrationExecutor

from jobs import checks, db, triggers
from jobs.errors import Conflict, InvalidInput
from jobs.log_formats import WorkerLog
from jobs.management import base
from jobs.registry import registry
from jobs.services import workers
from jobs.services.workers import ServedJobs, WorkerOptions
from jobs.validation import fields

LOG_LEVELS = {0: logging.WARNING, 1: logging.INFO}  # by verbosity


class Command(BaseCommand):
    requires_system_checks = [checks.TAG]
    help = "Claim jobs and run them until SIGTERM or Ctrl-C; another one, a second later, stops immediately."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", help=base.WORKER_NAME_HELP)
        parser.add_argument("--concurrency", default="1", help="Number of jobs that run at once (default 1).")
        parser.add_argument("--tenant", help="Only jobs of this tenant.")
        parser.add_argument("--types", help="Only jobs of these types, separated by commas.")
        parser.add_argument("--resources", help="Only jobs of these resources, separated by commas.")
        parser.add_argument("--exclude-types", metavar="TYPES", help="No jobs of these types, separated by commas.")
        resources = "No jobs of these resources, separated by commas."
        parser.add_argument("--exclude-resources", metavar="RESOURCES", help=resources)
        parser.add_argument("--executor", choices=["thread", "process"], default="thread", help="Where handlers run.")
        parser.add_argument("--burst", action="store_true", help="Exit when no job is left to run.")
        base.add_recycling_options(parser)
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
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {str(error).strip()}", returncode=1) from None
        try:
            exit_code = workers.run_worker(worker_options)
        except Conflict as error:
            raise CommandError(str(error), returncode=base.REFUSED) from None
        logging.shutdown()
        if exit_code:
            raise SystemExit(exit_code)

    def _parse_options(self, options: dict[str, Any]) -> WorkerOptions:
        return WorkerOptions(
            name=base.parse_worker_name(options["name"]),
            concurrency=base.parse_whole_number(options["concurrency"], "--concurrency", 1, 1000),
            serves=_parse_serves(options),
            executor=options["executor"],
            burst=options["burst"],
            maintenance=not options["no_housekeeping"],
            **base.parse_recycling_options(options),
            log=WorkerLog(options["log_format"], LOG_LEVELS.get(options["verbosity"], logging.DEBUG)),
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


def _parse_serves(options: dict[str, Any]) -> ServedJobs:
    tenant = options["tenant"]
    excluded = _parse_types(options, "exclude_types") or ()
    types = [name for name in _parse_types(options, "types") or registry.local_names() if name not in excluded]
    if excluded and not types:
        raise InvalidInput("--exclude-types", "leaves no job type to serve")
    resources = _parse_option(options, "resources")
    excluded_resources = _parse_option(options, "exclude_resources") or ()
    if resources is not None and set(resources) <= set(excluded_resources):
        raise InvalidInput("--exclude-resources", "leaves no resource to serve")
    names = ("types", "exclude_types", "resources", "exclude_resources", "tenant")
    return ServedJobs(
        types=tuple(types),
        resources=resources,
        excluded_resources=excluded_resources,
        tenant=None if tenant is None else fields.parse_tenant(tenant, "--tenant"),
        skip_unserved=any(options[name] is not None for name in names),
    )


def _parse_types(options: dict[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the job types that an option names, which must have handlers here; None if it is not given."""
    job_types = _parse_option(options, name)
    for job_type in job_types or ():
        if job_type not in registry.local_names():
            raise InvalidInput(base.get_option(name), f"no handler is registered for the job type {job_type!r}")
    return job_types


def _parse_option(options: dict[str, Any], name: str) -> tuple[str, ...] | None:
    """Return the names in an option; None if it is not given."""
    if options[name] is None:
        return None
    field = base.get_option(name)
    return tuple(fields.parse_identifier(value, field) for value in base.parse_names([options[name]], field))
