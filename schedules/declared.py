"""Schedules that the code declares: `@job("report.make", cron="0 3 * * *", timezone="Europe/Berlin")`.

The row of a single expression is `code:<job type>` and follows a change of it; several have one row each, which is
named after its expression.

`sync` writes a row for each declaration, after migrate and when a scheduler starts, and updates it until an operator
edits the row. Removing a declaration from the code disables its row; the row and its history stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.apps import apps as installed_apps
from django.apps.registry import Apps
from django.db import DatabaseError
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.actors import Actor, ActorKind
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.outages import OUTAGE_ERRORS
from jobs.registry import Handler, registry
from jobs.services.templates import NameTaken
from jobs.time_text import format_time
from jobs.validation.fields import NAME_LENGTH
from schedules import services, validation
from schedules.firing import BROKEN_PREFIX
from schedules.models import Schedule

logger = logging.getLogger("jobs.schedules.declared")
CODE_ACTOR = Actor(ActorKind.SCHEDULER, "code")
SOURCE_PREFIX = "code:"
GONE_REASON = "its declaration is gone from the code"


@dataclass(frozen=True)
class Declaration:
    """One schedule that a handler declares. `suffix` distinguishes it from the handler's other ones."""

    handler: Handler[..., Any]
    cron: str
    suffix: str

    @property
    def source(self) -> str:
        return f"{SOURCE_PREFIX}{self.handler.name}{self.suffix and f'#{self.suffix}'}"

    @property
    def names(self) -> Iterator[str]:
        """Yield the names to try for a new row."""
        name = f"{self.handler.name}{self.suffix and f' {self.suffix}'}"[-NAME_LENGTH:]
        yield name
        yield f"{name} (code)"[-NAME_LENGTH:]

    @property
    def fields(self) -> dict[str, Any]:
        options = self.handler.options
        return {
            "cron": self.cron,
            "timezone": options.timezone or "UTC",
            "params": dict(options.cron_params or {}),
            "fire_time_param": options.fire_time_param,
        }

    def validate(self) -> None:
        """Raise an error of the job scheduler unless a row can be created from this declaration, and its jobs run."""
        if len(self.source) > NAME_LENGTH:
            message = _("is longer than %d characters together with the job type") % NAME_LENGTH
            raise InvalidInput("cron", message, "string_too_long")
        fields = validation.clean_fields(self.fields, {})
        due = {fields["fire_time_param"]: format_time(clock.now())} if fields["fire_time_param"] else {}
        self.handler.signature.validate({**fields["params"], **due})


def list_declarations() -> Iterator[Declaration]:
    """Yield the schedules that handlers declare."""
    for handler in map(registry.get, registry.names()):
        crons = handler.options.cron
        for cron in crons:
            yield Declaration(handler, cron, cron if len(crons) > 1 else "")


def sync(*, retire: bool = False) -> None:
    """Make the rows agree with the code; `retire` also disables those whose declarations are gone.

    Only a migration retires: while old and new code run side by side, neither knows what the other declares.
    """
    row_of = {row.source: row for row in Schedule.objects.filter(source__startswith=SOURCE_PREFIX)}
    for declaration in list_declarations():
        try:
            _sync_row(declaration, row_of.pop(declaration.source, None))
        except OUTAGE_ERRORS:
            raise
        except JobSchedulerError as error:
            logger.error("the schedule declared by %r is invalid: %s", declaration.handler, error)
    for row in row_of.values() if retire else ():
        if row.enabled and not row.edited:
            services.disable(row.pk, reason=GONE_REASON, actor=CODE_ACTOR)


def sync_after_migrate(*, using: str, apps: Apps = installed_apps, **kwargs: Any) -> None:
    """Write the rows once the tables exist. A migration may also have dropped the tables, or have stopped half way.

    `apps` has the models as the migrations have left them; `flush` gives none.
    """
    if using != db.alias() or Schedule._meta.model_name not in apps.all_models[Schedule._meta.app_label]:
        return
    try:
        with db.atomic():
            sync(retire=True)
    except DatabaseError as error:
        logger.info("schedules declared in code were not synced: %s", error)


def _sync_row(declaration: Declaration, row: Schedule | None) -> None:
    fields = declaration.fields
    if row is None:
        _create(declaration)
        return
    cleaned = validation.clean_fields(fields, {})
    if not row.edited and any(getattr(row, name) != value for name, value in cleaned.items()):
        services.update(row.pk, fields, actor=CODE_ACTOR)
        Schedule.objects.filter(pk=row.pk).update(edited=False)
    if not row.enabled and (row.disabled_reason == GONE_REASON or row.disabled_reason.startswith(BROKEN_PREFIX)):
        services.enable(row.pk, actor=CODE_ACTOR)


def _create(declaration: Declaration) -> None:
    """Create the row. If another process has just created it, that row is used."""
    handler, source = declaration.handler, declaration.source
    declaration.validate()
    for name in declaration.names:
        with suppress(NameTaken):
            services.create(
                {**declaration.fields, "name": name, "job_type": handler.name}, actor=CODE_ACTOR, source=source
            )
        if Schedule.objects.filter(source=source).exists():
            return
    logger.error("the schedule declared by %r was not created: both names for it are taken", handler)
