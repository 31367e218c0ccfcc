"""The system check of webhooks, tag "jobs". Importing this module registers it."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.db import router

from jobs import db
from jobs.checks import TAG
from webhooks.models import WebhookMessage


@register(TAG)
def check_one_database(**kwargs: Any) -> list[CheckMessage]:
    """Report separate databases: triggers on the tables of jobs write the outbox."""
    jobs, webhooks = db.alias(), router.db_for_write(WebhookMessage)
    if jobs == webhooks:
        return []
    message = f"A database router puts jobs into {jobs!r} and webhooks into {webhooks!r}."
    hint = "Route the apps jobs and webhooks to the same database: triggers on jobs fill the outbox of webhooks."
    return [Error(message, hint=hint, id="webhooks.E001")]
