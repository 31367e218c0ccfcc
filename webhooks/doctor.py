"""Findings of `manage.py doctor` on webhooks."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.conf import conf
from jobs.management.doctor import Finding, Findings, Level
from webhooks.models import WebhookEndpoint
from webhooks.secrets import UndecryptableSecret, decrypt_secret

MAX_ENDPOINTS = 1000  # to check


def examine() -> Findings:
    """Report whether the secrets of endpoints can be decrypted, and by which key."""
    undecryptable = 0
    endpoints = list(WebhookEndpoint.objects.only("pk", "secret")[:MAX_ENDPOINTS])
    for endpoint in endpoints:
        try:
            decrypt_secret(bytes(endpoint.secret), endpoint.pk)
        except UndecryptableSecret:
            undecryptable += 1
    if undecryptable:
        message = (
            ngettext("the secret of %d cannot be decrypted", "the secrets of %d cannot be decrypted", undecryptable)
            % undecryptable
        )
        hint = _("Restore the key that encrypted them (WEBHOOK_SECRET_KEY, SECRET_KEY_FALLBACKS), or rotate them.")
        yield Finding("webhooks", Level.ERROR, message, hint)
    if endpoints and conf.WEBHOOK_SECRET_KEY is None:
        hint = _("Set WEBHOOK_SECRET_KEY before SECRET_KEY changes.")
        yield Finding("webhooks", Level.WARNING, _("secrets are encrypted with SECRET_KEY"), hint)
    if not undecryptable:
        message = ngettext(
            "%d endpoint, its secret can be decrypted", "%d endpoints, their secrets can be decrypted", len(endpoints)
        )
        yield Finding("webhooks", Level.OK, message % len(endpoints) if endpoints else _("no endpoints"))
