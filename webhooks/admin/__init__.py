"""Endpoints and deliveries in the console: `webhooks.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import ngettext

from jobs.admin import AdminRegistration
from jobs.admin.alerts import alert_from
from jobs.admin.job_detail import show_on_page
from jobs.admin.navigation import add_count
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
add_count(
    "endpoints", deliveries.find_disabled, lambda n, text: ngettext("%s disabled", "%s disabled", n) % text, is_bad=True
)
