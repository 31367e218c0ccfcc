"""Endpoints and deliveries in the console: `webhooks.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin.alerts import alert_from
from jobs.admin.job_page import show_on_page
from jobs.admin.registration import Registration
from webhooks.admin.alerting import disabled
from webhooks.admin.deliveries import (
    WebhookAttemptAdmin,
    WebhookAudienceAdmin,
    WebhookBundleAdmin,
    WebhookDeliveryAdmin,
    WebhookMessageAdmin,
)
from webhooks.admin.endpoints import WebhookEndpointAdmin
from webhooks.admin.of_job import deliveries_of_job
from webhooks.models import (
    WebhookAttempt,
    WebhookAudience,
    WebhookBundle,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
)

register = Registration(
    {
        WebhookEndpoint: WebhookEndpointAdmin,
        WebhookDelivery: WebhookDeliveryAdmin,
        WebhookMessage: WebhookMessageAdmin,
        WebhookBundle: WebhookBundleAdmin,
        WebhookAttempt: WebhookAttemptAdmin,
        WebhookAudience: WebhookAudienceAdmin,
    }
)
register.by_itself(admin.site)
show_on_page(deliveries_of_job)
alert_from(disabled)
