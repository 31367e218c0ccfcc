"""What the webhooks add to the dashboard: endpoints that were switched off because nobody answered there."""

from __future__ import annotations

from collections.abc import Iterator

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin.alerts import Alert
from jobs.admin.showing import list_url
from webhooks.models import WebhookEndpoint

MOST = 100


def disabled(site: AdminSite, request: HttpRequest) -> Iterator[Alert]:
    if not request.user.has_perm("jobscheduler_webhooks.view_webhookendpoint"):
        return
    off = WebhookEndpoint.objects.filter(enabled=False).exclude(disabled_reason="")
    if count := off[:MOST].count():
        told = ngettext("%d webhook endpoint was disabled.", "%d webhook endpoints were disabled.", count) % count
        url = f"{list_url(site, WebhookEndpoint)}?enabled=0" if site.is_registered(WebhookEndpoint) else ""
        yield Alert(told, url, _("Show"), is_bad=False)
