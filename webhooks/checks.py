"""The system check of webhooks, tag "jobs" (importing this registers it), and what `manage.py doctor` says of them."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.db import router
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import db
from jobs.checks import TAG
from jobs.conf import conf
from jobs.management.doctor import Finding, Findings, Level
from webhooks.models import WebhookEndpoint, WebhookMessage
from webhooks.secrets import UndecryptableSecret, decrypt_secret

MOST = 1000  # endpoints that are looked at


@register(TAG)
def check_one_database(**kwargs: Any) -> list[CheckMessage]:
    """Triggers on the jobs' tables write the outbox, so both must be in one database."""
    jobs, webhooks = db.alias(), router.db_for_write(WebhookMessage)
    if jobs == webhooks:
        return []
    message = f"A database router puts jobs into {jobs!r} and webhooks into {webhooks!r}."
    hint = "Route the apps jobs and webhooks to the same database: triggers on jobs fill the outbox of webhooks."
    return [Error(message, hint=hint, id="webhooks.E001")]


def examine() -> Findings:
    """Tell `manage.py doctor` whether the secrets of endpoints can be read."""
    unreadable = 0
    endpoints = list(WebhookEndpoint.objects.only("pk", "secret")[:MOST])
    for endpoint in endpoints:
        try:
            decrypt_secret(bytes(endpoint.secret), endpoint.pk)
        except UndecryptableSecret:
            unreadable += 1
    if unreadable:
        message = (
            ngettext("the secret of %d cannot be read", "the secrets of %d cannot be read", unreadable) % unreadable
        )
        hint = _("Restore the key that encrypted them (WEBHOOK_SECRET_KEY, SECRET_KEY_FALLBACKS), or rotate them.")
        yield Finding("webhooks", Level.ERROR, message, hint)
    if endpoints and conf.WEBHOOK_SECRET_KEY is None:
        hint = _("Set WEBHOOK_SECRET_KEY before SECRET_KEY changes.")
        yield Finding("webhooks", Level.WARNING, _("secrets are encrypted with SECRET_KEY"), hint)
    if not unreadable:
        message = ngettext(
            "%d endpoint, its secret can be read", "%d endpoints, their secrets can be read", len(endpoints)
        )
        yield Finding("webhooks", Level.OK, message % len(endpoints) if endpoints else _("no endpoints"))
