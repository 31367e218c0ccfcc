"""What `manage.py doctor` says of webhooks: whether their secrets can be read, and whether deliveries leave."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.conf import conf
from jobs.management.examining import Finding, Findings, Level
from webhooks import secret_encryption
from webhooks.models import WebhookEndpoint

MOST = 1000  # endpoints that are looked at


def examine() -> Findings:
    endpoints = list(WebhookEndpoint.objects.only("pk", "secret", "enabled", "disabled_reason")[:MOST])
    unreadable = sum(not _is_readable(each) for each in endpoints)
    if unreadable:
        told = ngettext("the secret of %d cannot be read", "the secrets of %d cannot be read", unreadable) % unreadable
        hint = _("Restore the key that encrypted them (WEBHOOK_SECRET_KEY, SECRET_KEY_FALLBACKS), or rotate them.")
        yield Finding("webhooks", Level.ERROR, told, hint)
    if endpoints and conf.WEBHOOK_SECRET_KEY is None:
        hint = _("Set WEBHOOK_SECRET_KEY before SECRET_KEY changes.")
        yield Finding("webhooks", Level.WARNING, _("secrets are encrypted with SECRET_KEY"), hint)
    if not unreadable:
        told = ngettext(
            "%d endpoint, its secret can be read", "%d endpoints, their secrets can be read", len(endpoints)
        )
        yield Finding("webhooks", Level.OK, told % len(endpoints) if endpoints else _("no endpoints"))


def _is_readable(endpoint: WebhookEndpoint) -> bool:
    try:
        secret_encryption.decrypt_secret(bytes(endpoint.secret), endpoint.pk)
    except secret_encryption.UndecryptableSecret:
        return False
    return True
