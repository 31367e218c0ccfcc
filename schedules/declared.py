"""Schedules that the code declares: `@job("report.make", cron="0 3 * * *", timezone="Europe/Berlin")`.

A declaration becomes a row by itself, on migrate and when a scheduler starts, and is followed as long as that
row is not edited. One that is gone from the code disables its row; the row and its history stay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.db import DatabaseError

from jobs import db
from jobs.actors import Actor, ActorKind
from jobs.engine.database import MISSING
from jobs.errors import JobSchedulerError
from jobs.registry import Handler, registry
from jobs.services.templates import NameTaken
from schedules import services, validation
from schedules.firing import BROKEN
from schedules.models import Schedule

logger = logging.getLogger("jobs.schedules.declared")
CODE = Actor(ActorKind.SCHEDULER, "code")
SOURCE = "code:"
GONE = "its declaration is gone from the code"


def handlers() -> Iterator[Handler[..., Any]]:
    """Those that declare a schedule."""
    return (handler for handler in map(registry.get, registry.names()) if handler.options.cron is not None)


def declaration(handler: Handler[..., Any]) -> dict[str, Any]:
    return {"cron": handler.options.cron, "timezone": handler.options.timezone or "UTC"}


def problem(handler: Handler[..., Any]) -> str | None:
    """Why a declaration cannot be followed, or None."""
    try:
        validation.clean(declaration(handler), {})
        handler.signature.validate({})
    except JobSchedulerError as error:
        return str(error)
    return None


def sync(*, retire: bool = False) -> None:
    """Bring the rows in line with the code; `retire` also disables those whose declarations are gone.

    Only a migration retires: while old and new code run side by side, neither can tell what the other declares.
    """
    known = {row.source: row for row in Schedule.objects.filter(source__startswith=SOURCE)}
    for handler in handlers():
        try:
            _follow(handler, known.pop(f"{SOURCE}{handler.name}", None))
        except MISSING:
            raise
        except JobSchedulerError as error:
            logger.error("the schedule that %r declares cannot be followed: %s", handler, error)
    for row in known.values() if retire else ():
        if row.enabled and not row.edited:
            services.disable(row.pk, reason=GONE, actor=CODE)


def sync_after_migrate(*, using: str, **kwargs: Any) -> None:
    """Create the rows with the tables. A migration may also have dropped the tables, or have stopped half way."""
    if using != db.alias():
        return
    try:
        with db.atomic():
            sync(retire=True)
    except DatabaseError as error:
        logger.info("schedules that the code declares were not looked at: %s", error)


def _follow(handler: Handler[..., Any], row: Schedule | None) -> None:
    values = declaration(handler)
    if row is None:
        _create(handler, values)
        return
    if not row.edited and any(getattr(row, name) != value for name, value in validation.clean(values, {}).items()):
        services.update(row.pk, values, actor=CODE)
        Schedule.objects.filter(pk=row.pk).update(edited=False)
    if not row.enabled and (row.disabled_reason == GONE or row.disabled_reason.startswith(BROKEN)):
        services.enable(row.pk, actor=CODE)


def _create(handler: Handler[..., Any], values: dict[str, Any]) -> None:
    """Another process may do the same at this moment: then its row is there, and that is as good."""
    source = f"{SOURCE}{handler.name}"
    for name in (handler.name, f"{handler.name} (code)"[-200:]):
        with suppress(NameTaken):
            services.create({**values, "name": name, "job_type": handler.name}, actor=CODE, source=source)
        if Schedule.objects.filter(source=source).exists():
            return
    logger.error("the schedule that %r declares has no name: both are taken", handler)
