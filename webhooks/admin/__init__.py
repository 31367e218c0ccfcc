"""Endpoints and deliveries in the console: `webhooks.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import AdminRegistration
from jobs.admin.alerts import alert_from
from jobs.admin.job_detail import show_on_page
from webhooks import models
from webhooks.admin import deliveries, endpoints

register = AdminRegistration(
    {
        models.WebhookEndpoint: endpoints.WebhookEndpointAdmin,
        models.WebhookDelivery: deliveries.WebhookDeliveryAdmin,
        models.WebhookMessage: deliveries.WebhookMessageAdmin,
        models.WebhookSubscription: deliveries.WebhookSubscriptionAdmin,
        models.WebhookAttempt: deliveries.WebhookAttemptAdmin,
    }
)
register.autoregister(admin.site)
show_on_page(deliveries.deliveries_of_job)
alert_from(deliveries.alert_disabled)
