"""The system check of webhooks, tag "jobs", and the findings of `manage.py doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, register
from django.db import router
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import db
from jobs.checks import TAG
from jobs.conf import conf
from webhooks.models import WebhookEndpoint, WebhookMessage
from webhooks.secrets import UndecryptableSecret, decrypt_secret

MAX_ENDPOINTS = 1000  # to check


@register(TAG)
def check_one_database(**kwargs: Any) -> list[CheckMessage]:
    """Report separate databases: triggers on the tables of jobs write the outbox."""
    jobs, webhooks = db.alias(), router.db_for_write(WebhookMessage)
    if jobs == webhooks:
        return []
    message = f"A database router puts jobs into {jobs!r} and webhooks into {webhooks!r}."
    hint = "Route the apps jobs and webhooks to the same database: triggers on jobs fill the outbox of webhooks."
    return [Error(message, hint=hint, id="webhooks.E001")]


def examine() -> Iterator[Any]:
    """Report whether the secrets of endpoints can be decrypted, and by which key."""
    from jobs.management.doctor import Finding, Level  # only the command needs what this imports

    undecryptable = 0
    endpoints = list(WebhookEndpoint.objects.only("pk", "secret")[:MAX_ENDPOINTS])
    for endpoint in endpoints:
        try:
            decrypt_secret(bytes(endpoint.secret), endpoint.pk)
        except UndecryptableSecret:
            undecryptable += 1
    if undecryptable:
        message = ngettext(
            "the secret of %d cannot be decrypted", "the secrets of %d cannot be decrypted", undecryptable
        )
        hint = _("Restore the key that encrypted them (WEBHOOK_SECRET_KEY, SECRET_KEY_FALLBACKS), or rotate them.")
        yield Finding("webhooks", Level.ERROR, message % undecryptable, hint)
    if endpoints and conf.WEBHOOK_SECRET_KEY is None:
        hint = _("Set WEBHOOK_SECRET_KEY before SECRET_KEY changes.")
        yield Finding("webhooks", Level.WARNING, _("secrets are encrypted with SECRET_KEY"), hint)
    if not undecryptable:
        message = ngettext(
            "%d endpoint, its secret can be decrypted", "%d endpoints, their secrets can be decrypted", len(endpoints)
        )
        yield Finding("webhooks", Level.OK, message % len(endpoints) if endpoints else _("no endpoints"))
