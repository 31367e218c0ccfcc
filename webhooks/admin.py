"""Endpoints and deliveries, to look at: `webhooks.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.filters import CreatedFilter, EnabledFilter, one_of
from jobs.admin.reading import StateAdmin
from jobs.admin.registration import Registration
from jobs.admin.showing import first_line, isolated, json_text, link, shown, text_block
from jobs.models import Job, JobGroup
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint


class WebhookEndpointAdmin(StateAdmin):
    """The secrets are no fields of any page."""

    list_display = ("shown_url", "tenant", "shown_events", "enabled", "failures", "open_until")
    list_filter = (EnabledFilter,)
    list_defer = ("secret", "old_secret")
    name_field = "url"
    qualifiers = {"tenant": "tenant"}
    fieldsets = (
        (None, {"fields": ("id", "tenant", "whole_url", "shown_events", "created_at")}),
        (
            _("State"),
            {"fields": ("enabled", "shown_reason", "failures", "open_until", "old_secret_until")},
        ),
    )

    @shown(_("URL"))
    def shown_url(self, endpoint: WebhookEndpoint) -> SafeString:
        return isolated(first_line(endpoint.url))

    @shown(_("URL"))
    def whole_url(self, endpoint: WebhookEndpoint) -> SafeString:
        return isolated(endpoint.url)

    @shown(_("events"))
    def shown_events(self, endpoint: WebhookEndpoint) -> SafeString:
        return isolated(", ".join(map(str, endpoint.events)))

    @shown(_("disabled because"))
    def shown_reason(self, endpoint: WebhookEndpoint) -> SafeString | None:
        return text_block(endpoint.disabled_reason)


class WebhookDeliveryAdmin(StateAdmin):
    list_display = ("id", "event", "endpoint_link", "status", "attempts", "response_status", "next_try_at")
    list_filter = (one_of("status", _("status"), DeliveryStatus.choices), CreatedFilter)
    list_select_related = ("endpoint",)
    list_defer = ("error", "endpoint__secret", "endpoint__old_secret")
    sortable_by = ("id",)
    qualifiers = {"job": "job_id", "group": "group_id", "endpoint": "endpoint", "event": "event"}
    payload = ("shown_body",)
    fieldsets = (
        (None, {"fields": ("id", "event", "endpoint_link", "job_link", "group_link", "created_at")}),
        (
            _("State"),
            {"fields": ("status", "attempts", "next_try_at", "delivered_at", "response_status", "shown_error")},
        ),
    )

    @shown(_("endpoint"))
    def endpoint_link(self, delivery: WebhookDelivery) -> SafeString | str | None:
        return link(self.admin_site, WebhookEndpoint, delivery.endpoint_id, first_line(delivery.endpoint.url, 60))

    @shown(_("job"))
    def job_link(self, delivery: WebhookDelivery) -> SafeString | str | None:
        return link(self.admin_site, Job, delivery.job_id)

    @shown(_("group"))
    def group_link(self, delivery: WebhookDelivery) -> SafeString | str | None:
        return link(self.admin_site, JobGroup, delivery.group_id)

    @shown(_("error"))
    def shown_error(self, delivery: WebhookDelivery) -> SafeString | None:
        return text_block(delivery.error)

    @shown(_("body"))
    def shown_body(self, delivery: WebhookDelivery) -> SafeString | None:
        return json_text(delivery.message.body)


register = Registration({WebhookEndpoint: WebhookEndpointAdmin, WebhookDelivery: WebhookDeliveryAdmin})
register.by_itself(admin.site)
