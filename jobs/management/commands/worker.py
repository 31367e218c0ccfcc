"""`manage.py worker`: claims jobs and runs them."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError
from django.db.migrations.executor import MigrationExecutor

from jobs import checks, db, triggers
from jobs.engine.claim import Serves
from jobs.engine.process_identity import Identity
from jobs.engine.worker import WorkerLoop, WorkerOptions
from jobs.engine.worker.registration import find_running_duplicate
from jobs.errors import InvalidInput
from jobs.management import base
from jobs.management.logging import configure
from jobs.registry import registry
from jobs.validation import fields


class Command(BaseCommand):
    requires_system_checks = [checks.TAG]
    help = "Claims jobs and runs them until it is told to stop (SIGTERM or Ctrl-C; twice: at once)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", help="A name to keep over restarts; default <hostname>-<pid>.")
        parser.add_argument("--concurrency", default="1", help="How many jobs at once (default 1).")
        parser.add_argument("--tenant", help="Only this tenant's jobs.")
        parser.add_argument("--types", help="Only these job types, separated by commas.")
        parser.add_argument("--resources", help="Only jobs of these resources, separated by commas.")
        parser.add_argument("--executor", choices=["thread", "process"], default="thread", help="Where handlers run.")
        parser.add_argument("--burst", action="store_true", help="End when there is nothing left to run.")
        parser.add_argument("--no-housekeeping", action="store_true", help="Leave the periodic duties to others.")
        parser.add_argument("--log-format", choices=["human", "json"], default="human", help="How log lines look.")

    def handle(self, *args: Any, **given: Any) -> None:
        try:
            options = self._options(given)
        except InvalidInput as error:
            raise CommandError(str(error), returncode=base.BAD_INPUT) from None
        self._require_enough_connections(options)
        try:
            self._require_sound_database()
            me = Identity.mine(options.name)
            other = find_running_duplicate(me)
        except OperationalError as error:
            raise CommandError(f"The database cannot be used: {str(error).strip()}", returncode=1) from None
        if other is not None:
            message = f"A worker named {me.name} is running already (host {other.host}, pid {other.pid})."
            raise CommandError(message, returncode=base.BAD_INPUT)
        configure(given["log_format"], verbosity=given["verbosity"])
        worker = WorkerLoop(options)
        worker.install_signal_handlers()
        code = worker.run()
        logging.shutdown()
        if code:
            raise SystemExit(code)

    def _options(self, given: dict[str, Any]) -> WorkerOptions:
        name = given["name"]
        if name is not None and set(fields.parse_text(name, "--name", max_length=100, single_line=True)) & set("@#:"):
            raise InvalidInput("--name", "must not contain @, # or :")
        return WorkerOptions(
            name=name,
            concurrency=base.whole_number(given["concurrency"], "--concurrency", 1, 1000),
            serves=serves(given["types"], given["resources"], given["tenant"]),
            executor=given["executor"],
            burst=given["burst"],
            maintenance=not given["no_housekeeping"],
        )

    def _require_sound_database(self) -> None:
        problem = checks.sqlite_problem(db.alias())
        if problem is not None:
            raise CommandError(problem, returncode=base.BAD_INPUT)
        plan = MigrationExecutor(db.connection())
        if plan.migration_plan([leaf for leaf in plan.loader.graph.leaf_nodes() if leaf[0] == "jobscheduler_jobs"]):
            raise CommandError("The database lacks migrations; run `manage.py migrate` first.", returncode=1)
        if missing := triggers.missing_triggers(db.connection()):
            told = f"The database lacks triggers: {', '.join(missing)}. Run `manage.py migrate`: it puts them back."
            raise CommandError(told, returncode=1)

    def _require_enough_connections(self, options: WorkerOptions) -> None:
        """The worker's own threads are outside of Django's pool, but each handler thread takes a connection from it."""
        size = db.pool_size()
        if size is None or options.executor != "thread" or size >= options.concurrency:
            return
        raise CommandError(
            f"Django's connection pool gives {size} connections to a process, fewer than the {options.concurrency} "
            f'handlers of --concurrency. Set OPTIONS["pool"] = {{"max_size": {options.concurrency}}} or more.',
            returncode=base.BAD_INPUT,
        )


def serves(types: str | None, resources: str | None, tenant: str | None) -> Serves:
    known = registry.local_names()
    wanted = known if types is None else _names(types, "--types")
    for name in wanted:
        if name not in known:
            raise InvalidInput("--types", f"there is no handler for the job type {name!r} here")
    return Serves(
        types=tuple(wanted),
        resources=None if resources is None else tuple(_names(resources, "--resources")),
        tenant=None if tenant is None else fields.parse_tenant(tenant, "--tenant"),
        choosy=(types, resources, tenant) != (None, None, None),
    )


def _names(value: str, field: str) -> list[str]:
    return [fields.parse_identifier(name, field) for name in base.names([value], field)]
