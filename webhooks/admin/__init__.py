"""Endpoints and deliveries in the console: `webhooks.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import Registration
from jobs.admin.alerts import alert_from
from jobs.admin.job_page import show_on_page
from webhooks.admin.deliveries import (
    WebhookAttemptAdmin,
    WebhookDeliveryAdmin,
    WebhookMessageAdmin,
    WebhookSubscriptionAdmin,
    deliveries_of_job,
    disabled,
)
from webhooks.admin.endpoints import WebhookEndpointAdmin
from webhooks.models import (
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
    WebhookSubscription,
)

register = Registration(
    {
        WebhookEndpoint: WebhookEndpointAdmin,
        WebhookDelivery: WebhookDeliveryAdmin,
        WebhookMessage: WebhookMessageAdmin,
        WebhookSubscription: WebhookSubscriptionAdmin,
        WebhookAttempt: WebhookAttemptAdmin,
    }
)
register.by_itself(admin.site)
show_on_page(deliveries_of_job)
alert_from(disabled)
