"""Findings of `manage.py doctor` on webhooks."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.conf import conf
from jobs.management.doctor import Finding, Findings, Level
from webhooks.models import WebhookEndpoint
from webhooks.secrets import UndecryptableSecret, decrypt_secret

MOST = 1000  # endpoints that are looked at


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
