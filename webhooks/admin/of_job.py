"""The deliveries of one job, on that job's page."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from jobs.admin.showing import first_line, link, list_url
from jobs.models import Job
from webhooks import counts
from webhooks.models import WebhookDelivery, WebhookEndpoint

SHOWN = 50
VIEW = "jobscheduler_webhooks.view_webhookdelivery"


def deliveries_of_job(admin: Any, request: HttpRequest, job: Job) -> SafeString | None:
    """None where there are none, or for those who may not see them."""
    if not request.user.has_perm(VIEW):
        return None
    rows = WebhookDelivery.objects.filter(job_id=job.pk).select_related("endpoint").order_by("-pk")
    found = list(rows.defer("endpoint__secret", "endpoint__old_secret")[:SHOWN])
    waiting = counts.about_to_be_made([job.pk]).get(job.pk, 0)
    if not found and not waiting:
        return None
    site = admin.admin_site
    everything = f"{list_url(site, WebhookDelivery)}?q=job:{job.pk}" if site.is_registered(WebhookDelivery) else ""
    shown = [
        (
            each,
            link(site, WebhookDelivery, each.pk),
            link(site, WebhookEndpoint, each.endpoint_id, first_line(each.endpoint.url, 60)),
        )
        for each in found
    ]
    context = {"deliveries": shown, "waiting": waiting, "all_url": everything if len(found) == SHOWN else ""}
    return render_to_string("webhooks/deliveries_of_job.html", context, request)
