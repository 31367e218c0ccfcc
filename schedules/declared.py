"""Schedules that the code declares: `@job("report.make", cron="0 3 * * *", timezone="Europe/Berlin")`.

`sync` writes a row for each declaration, after migrate and when a scheduler starts, and updates it until an operator
edits the row. Removing a declaration from the code disables its row; the row and its history stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.db import DatabaseError

from jobs import db
from jobs.actors import Actor, ActorKind
from jobs.errors import JobSchedulerError
from jobs.outages import OUTAGE_ERRORS
from jobs.registry import Handler, registry
from jobs.services.templates import NameTaken
from schedules import services, validation
from schedules.firing import BROKEN_PREFIX
from schedules.models import Schedule

logger = logging.getLogger("jobs.schedules.declared")
CODE_ACTOR = Actor(ActorKind.SCHEDULER, "code")
SOURCE_PREFIX = "code:"
GONE_REASON = "its declaration is gone from the code"


def declaring_handlers() -> Iterator[Handler[..., Any]]:
    """Yield the handlers that declare a schedule."""
    return (handler for handler in map(registry.get, registry.names()) if handler.options.cron is not None)


def declared_fields(handler: Handler[..., Any]) -> dict[str, Any]:
    return {"cron": handler.options.cron, "timezone": handler.options.timezone or "UTC"}


def sync(*, retire: bool = False) -> None:
    """Make the rows agree with the code; `retire` also disables those whose declarations are gone.

    Only a migration retires: while old and new code run side by side, neither knows what the other declares.
    """
    row_of = {row.source: row for row in Schedule.objects.filter(source__startswith=SOURCE_PREFIX)}
    for handler in declaring_handlers():
        try:
            _sync_handler(handler, row_of.pop(f"{SOURCE_PREFIX}{handler.name}", None))
        except OUTAGE_ERRORS:
            raise
        except JobSchedulerError as error:
            logger.error("the schedule declared by %r is invalid: %s", handler, error)
    for row in row_of.values() if retire else ():
        if row.enabled and not row.edited:
            services.disable(row.pk, reason=GONE_REASON, actor=CODE_ACTOR)


def sync_after_migrate(*, using: str, **kwargs: Any) -> None:
    """Write the rows once the tables exist. A migration may also have dropped the tables, or have stopped half way."""
    if using != db.alias():
        return
    try:
        with db.atomic():
            sync(retire=True)
    except DatabaseError as error:
        logger.info("schedules declared in code were not synced: %s", error)


def _sync_handler(handler: Handler[..., Any], row: Schedule | None) -> None:
    fields = declared_fields(handler)
    if row is None:
        _create(handler, fields)
        return
    cleaned = validation.clean_fields(fields, {})
    if not row.edited and any(getattr(row, name) != value for name, value in cleaned.items()):
        services.update(row.pk, fields, actor=CODE_ACTOR)
        Schedule.objects.filter(pk=row.pk).update(edited=False)
    if not row.enabled and (row.disabled_reason == GONE_REASON or row.disabled_reason.startswith(BROKEN_PREFIX)):
        services.enable(row.pk, actor=CODE_ACTOR)


def _create(handler: Handler[..., Any], fields: dict[str, Any]) -> None:
    """Create the row. If another process has just created it, that row is used."""
    source = f"{SOURCE_PREFIX}{handler.name}"
    for name in (handler.name, f"{handler.name} (code)"[-200:]):
        with suppress(NameTaken):
            services.create({**fields, "name": name, "job_type": handler.name}, actor=CODE_ACTOR, source=source)
        if Schedule.objects.filter(source=source).exists():
            return
    logger.error("the schedule declared by %r was not created: both names for it are taken", handler)
