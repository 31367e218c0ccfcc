"""Deliveries, their messages and their tries, to look at and to send again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs.actors import Actor
from jobs.admin.buttons import Button, ButtonAdmin
from jobs.admin.filters import CreatedFilter, one_of
from jobs.admin.marks import mark, when
from jobs.admin.reading import StateAdmin, may_view_payload
from jobs.admin.showing import first_line, json_text, link, short_id, shown, text_block
from jobs.models import Job, JobGroup
from jobs.version import __version__
from webhooks import services
from webhooks.models import (
    DeliveryStatus,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
    WebhookSubscription,
)

SHOWN = 50
SIGNS = {
    DeliveryStatus.DELIVERED: ("good", "✓"),
    DeliveryStatus.FAILED: ("bad", "✗"),
    DeliveryStatus.PENDING: ("pending", "○"),
}


def _resend(delivery: WebhookDelivery, *, reason: str, actor: Actor) -> WebhookDelivery:
    return services.resend(delivery.pk, actor=actor)


def _resend_many(rows: Sequence[WebhookDelivery], *, actor: Actor) -> int:
    return services.resend_many([each.pk for each in rows], actor=actor)


def _request_head(delivery: WebhookDelivery) -> str:
    """What every try of it says; the time and the signature are made anew for each."""
    lines = (
        f"POST {delivery.endpoint.url}",
        "Content-Type: application/json",
        f"User-Agent: jobscheduler-webhooks/{__version__}",
        f"webhook-id: {delivery.pk}",
        f"webhook-timestamp: {_now('the second of the try')}",
        "webhook-signature: v1,…",
    )
    return "\n".join(lines)


class Linked(StateAdmin):
    @shown(_("job"))
    def job_link(self, row: Any) -> SafeString | str | None:
        return link(self.admin_site, Job, row.job_id)

    @shown(_("group"))
    def group_link(self, row: Any) -> SafeString | str | None:
        return link(self.admin_site, JobGroup, row.group_id)


class WebhookDeliveryAdmin(ButtonAdmin, Linked):
    change_form_template = "webhooks/delivery_page.html"
    buttons = (
        Button(
            "resend",
            pgettext_lazy("verb", "Resend"),
            _("Resend selected deliveries"),
            ngettext_lazy("%(count)d delivery is sent again", "%(count)d deliveries are sent again", "count"),
            f"{WebhookDelivery._meta.app_label}.resend_delivery",
            _resend,
            bulk=_resend_many,
        ),
    )
    nothing_yet = _(
        "Nothing was sent yet. Deliveries appear here once an endpoint listens and something happens to a job."
    )
    list_display = ("short_id", "event", "endpoint_link", "shown_status", "attempts", "took", "next_try")
    list_filter = (one_of("status", _("status"), DeliveryStatus.choices), CreatedFilter)
    list_select_related = ("endpoint",)
    list_defer = ("error", "endpoint__secret", "endpoint__old_secret")
    sortable_by = ("short_id",)
    qualifiers = {"job": "job_id", "group": "group_id", "endpoint": "endpoint", "event": "event"}
    payload = ("shown_body",)
    fieldsets = (
        (None, {"fields": ("id", "event", "endpoint_link", "job_link", "group_link", "created_at")}),
        (
            _("State"),
            {"fields": ("shown_status", "attempts", "next_try_at", "delivered_at", "shown_error")},
        ),
    )

    def live_mark(self) -> str:
        """The last delivery that was made, and the last that was tried."""
        made = WebhookDelivery.objects.order_by("-pk").values_list("pk").first()
        tried = WebhookAttempt.objects.order_by("-pk").values_list("pk").first()
        return f"{made} {tried}"

    def sections(self, request: HttpRequest, row: WebhookDelivery) -> dict[str, Any]:
        tries = WebhookAttempt.objects.filter(delivery_id=row.pk).order_by("-pk")
        hidden = () if may_view_payload(request) else ("response_head", "response_body")
        shown_tries = tries.defer(*hidden)[:SHOWN]
        return {"tries": shown_tries, "may_view_payload": not hidden, "request_head": _request_head(row)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookDelivery]:
        last = WebhookAttempt.objects.filter(delivery_id=OuterRef("pk")).order_by("-pk").values("took_ms")
        found: QuerySet[WebhookDelivery] = super().get_queryset(request).annotate(last_took_ms=Subquery(last[:1]))
        return found

    @shown(_("delivery"), ordering="id")
    def short_id(self, delivery: WebhookDelivery) -> SafeString:
        return format_html('<span title="{}">{}</span>', delivery.pk, short_id(delivery.pk))

    @shown(_("status"))
    def shown_status(self, delivery: WebhookDelivery) -> SafeString:
        """With what the receiver answered."""
        kind, icon = SIGNS[DeliveryStatus(delivery.status)]
        answered = "" if delivery.response_status is None else str(delivery.response_status)
        return mark(kind, delivery.get_status_display(), icon, answered)

    @shown(_("took"))
    def took(self, delivery: WebhookDelivery) -> str | None:
        milliseconds = getattr(delivery, "last_took_ms", None)
        return None if milliseconds is None else f"{milliseconds} ms"

    @shown(_("next try"))
    def next_try(self, delivery: WebhookDelivery) -> SafeString | None:
        return when(delivery.next_try_at)

    @shown(_("endpoint"))
    def endpoint_link(self, delivery: WebhookDelivery) -> SafeString | str | None:
        return link(self.admin_site, WebhookEndpoint, delivery.endpoint_id, first_line(delivery.endpoint.url, 60))

    @shown(_("error"))
    def shown_error(self, delivery: WebhookDelivery) -> SafeString | None:
        return text_block(delivery.error)

    @shown(_("body"))
    def shown_body(self, delivery: WebhookDelivery) -> SafeString | None:
        return json_text(delivery.message.body)


class WebhookMessageAdmin(Linked):
    list_display = ("id", "event", "tenant", "job_link", "at", "fanned_out_at")
    list_defer = ("body",)
    sortable_by = ("id",)
    id_field = "group_id"
    qualifiers = {"group": "group_id"}
    payload = ("shown_body",)
    fieldsets = ((None, {"fields": ("id", "event", "tenant", "job_link", "group_link", "at", "fanned_out_at")}),)

    @shown(_("body"))
    def shown_body(self, message: WebhookMessage) -> SafeString | None:
        return None if message.body is None else json_text(message.body)


class WebhookAttemptAdmin(StateAdmin):
    list_display = ("id", "delivery_link", "at", "response_status", "took_ms", "first_error")
    list_defer = ("response_head", "response_body")
    sortable_by = ("id",)
    id_field = "delivery_id"
    payload = ("shown_head", "shown_body")
    fieldsets = ((None, {"fields": ("id", "delivery_link", "at", "took_ms", "response_status", "shown_error")}),)

    @shown(_("delivery"))
    def delivery_link(self, attempt: WebhookAttempt) -> SafeString | str | None:
        return link(self.admin_site, WebhookDelivery, attempt.delivery_id)

    @shown(_("error"))
    def first_error(self, attempt: WebhookAttempt) -> str | None:
        return first_line(attempt.error) or None

    @shown(_("error"))
    def shown_error(self, attempt: WebhookAttempt) -> SafeString | None:
        return text_block(attempt.error)

    @shown(_("response head"))
    def shown_head(self, attempt: WebhookAttempt) -> SafeString | None:
        return text_block(attempt.response_head)

    @shown(_("response body"))
    def shown_body(self, attempt: WebhookAttempt) -> SafeString | None:
        return text_block(attempt.response_body)


class WebhookSubscriptionAdmin(StateAdmin):
    list_display = ("id", "event", "tenant", "endpoint_link", "since", "until")
    list_select_related = ("endpoint",)
    list_defer = ("endpoint__secret", "endpoint__old_secret")
    sortable_by = ("id",)
    id_field = "endpoint_id"
    qualifiers = {"endpoint": "endpoint", "event": "event"}
    fieldsets = ((None, {"fields": ("id", "event", "tenant", "endpoint_link", "since", "until")}),)

    @shown(_("endpoint"))
    def endpoint_link(self, subscription: WebhookSubscription) -> SafeString | str | None:
        url = first_line(subscription.endpoint.url, 60)
        return link(self.admin_site, WebhookEndpoint, subscription.endpoint_id, url)
