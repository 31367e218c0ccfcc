"""Deliveries in the console, with their messages and attempts; deliveries can be resent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.contrib.admin import AdminSite
from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Now
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy, pgettext_lazy

from jobs.actors import Actor
from jobs.admin.alerts import Alert, join_names
from jobs.admin.base import ReadOnlyAdmin, can_view_payload
from jobs.admin.columns import column, computed_column, label_on_phone, link, link_column, list_url, short_id
from jobs.admin.filters import CreatedFilter, choice_filter
from jobs.admin.formatting import badge, first_line, format_relative_time, json_bytes_block, text_block
from jobs.admin.object_actions import BulkResult, ObjectAction, ObjectActionAdmin, call_with_key
from jobs.models import Job, JobGroup
from jobs.version import __version__
from webhooks import services
from webhooks.circuit_breaker import is_tripped
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint

ROWS_SHOWN = 50
MAX_COUNT = 100  # of disabled endpoints
SHOWN_IN_ALERT = 3
VIEW_PERMISSION = "jobscheduler_webhooks.view_webhookdelivery"
STATUS_BADGES = {
    DeliveryStatus.DELIVERED: ("good", "✓"),
    DeliveryStatus.FAILED: ("bad", "✗"),
    DeliveryStatus.PENDING: ("pending", "○"),
}


def _link_endpoint(site: AdminSite, row: Any) -> SafeString | str | None:
    return link(site, WebhookEndpoint, row.endpoint_id, first_line(str(row.endpoint), 60))


class LinkedAdmin(ReadOnlyAdmin):
    job_link = link_column(_("job"), Job, "job_id")
    group_link = link_column(_("group"), JobGroup, "group_id")

    endpoint_link = computed_column(_("endpoint"))(lambda admin, row: _link_endpoint(admin.admin_site, row))


class WebhookDeliveryAdmin(ObjectActionAdmin, LinkedAdmin):
    change_form_template = "webhooks/delivery_page.html"
    object_actions = (
        ObjectAction(
            "resend",
            pgettext_lazy("verb", "Resend"),
            _("Resend selected deliveries"),
            ngettext_lazy(
                "%(count)d delivery queued for resending", "%(count)d deliveries queued for resending", "count"
            ),
            f"{WebhookDelivery._meta.app_label}.resend_delivery",
            call_with_key(services.resend, with_reason=False),
            bulk=lambda rows, *, actor: resend_selected(rows, actor),
        ),
    )
    empty_text = _("No deliveries yet. They appear here once an endpoint is enabled and one of its events occurs.")
    list_display = (
        *("short_id", "created", "event", "source_link", "endpoint_link"),
        *("shown_status", "attempts", "took", "listed_next_attempt"),
    )
    list_filter = (choice_filter("status", _("status"), DeliveryStatus.choices), CreatedFilter)
    list_select_related = ("endpoint",)
    list_defer = ("error", "endpoint__secret", "endpoint__old_secret")
    sortable_by = ("short_id",)
    qualifiers = {"job": "job_id", "group": "group_id", "endpoint": "endpoint", "event": "event"}
    payload = ("shown_body",)
    fieldsets = (
        (None, {"fields": ("id", "event", "endpoint_link", "job_link", "group_link", "created")}),
        (_("Status"), {"fields": ("shown_status", "attempts", "next_attempt", "delivered", "shown_error")}),
    )

    took = column(_("took"), "last_took_ms", lambda took_ms: None if took_ms is None else f"{took_ms} ms")
    created = column(_("created"), "created_at", format_relative_time)
    delivered = column(_("delivered"), "delivered_at", format_relative_time)
    shown_error = column(_("error"), "error", text_block)
    shown_body = column(_("body"), "message", lambda message: json_bytes_block(message.body))

    def list_version(self) -> str:
        """Return a text that changes with each new delivery and each attempt."""
        delivery_id = WebhookDelivery.objects.order_by("-pk").values_list("pk").first()
        attempt_id = WebhookAttempt.objects.order_by("-pk").values_list("pk").first()
        return f"{delivery_id} {attempt_id}"

    def page_context(self, request: HttpRequest, row: WebhookDelivery) -> dict[str, Any]:
        attempts = WebhookAttempt.objects.filter(delivery_id=row.pk).order_by("-pk")
        hidden = () if can_view_payload(request) else ("response_head", "response_body")
        url = f"{row.endpoint.origin}/…" if hidden else row.endpoint.url
        head_lines = (  # of every attempt; time and signature differ
            f"POST {url}",
            "Content-Type: application/json",
            f"User-Agent: jobscheduler-webhooks/{__version__}",
            f"webhook-id: {row.pk}",
            f"webhook-timestamp: {_now('time of the attempt')}",
            "webhook-signature: v1,…",
        )
        shown_attempts = attempts.defer(*hidden)[:ROWS_SHOWN]
        return {
            "title": _now("Delivery %s") % short_id(row.pk),
            "subtitle": None,
            "attempts": shown_attempts,
            "can_view_payload": not hidden,
            "request_head": "\n".join(head_lines),
        }

    def page_version(self, request: HttpRequest, row: WebhookDelivery) -> str:
        """Return a text that changes with each attempt, and with the endpoint's suspension."""
        endpoint = row.endpoint
        parts = (row.status, row.attempts, row.next_try_at, row.lease_token, row.probe)
        return " ".join(map(str, (*parts, endpoint.enabled, endpoint.failures, endpoint.open_until)))

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        job_ids = {delivery.job_id for delivery in rows if delivery.job_id is not None}
        type_of = dict(Job.objects.filter(pk__in=job_ids).order_by().values_list("pk", "job_type"))
        for delivery in rows:
            delivery.job_type = type_of.get(delivery.job_id, "")

    def get_queryset(self, request: HttpRequest) -> QuerySet[WebhookDelivery]:
        took_ms = WebhookAttempt.objects.filter(delivery_id=OuterRef("pk")).order_by("-pk").values("took_ms")
        return super().get_queryset(request).annotate(last_took_ms=Subquery(took_ms[:1]), read_at=Now())

    @computed_column(_("delivery"), ordering="id")
    def short_id(self, delivery: WebhookDelivery) -> SafeString:
        return format_html('<span title="{}">{}</span>', delivery.pk, short_id(delivery.pk))

    @computed_column(_("job or group"))
    def source_link(self, delivery: WebhookDelivery) -> SafeString | str | None:
        if delivery.job_id is None:
            return link(self.admin_site, JobGroup, delivery.group_id, short_id(delivery.group_id))
        text = f"{getattr(delivery, 'job_type', '')} {short_id(delivery.job_id)}".strip()
        return link(self.admin_site, Job, delivery.job_id, text)

    @computed_column(_("next attempt"))
    def listed_next_attempt(self, delivery: WebhookDelivery) -> SafeString | None:
        text = describe_next_attempt(delivery)
        return None if text is None else label_on_phone(_now("next attempt"), text)

    next_attempt = computed_column(_("next attempt"))(lambda self, delivery: describe_next_attempt(delivery))

    @computed_column(_("status"))
    def shown_status(self, delivery: WebhookDelivery) -> SafeString:
        return _status_badge(delivery)


def _status_badge(delivery: WebhookDelivery) -> SafeString:
    """Return the status with that of the response."""
    kind, icon = STATUS_BADGES[DeliveryStatus(delivery.status)]
    response_status = "" if delivery.response_status is None else str(delivery.response_status)
    return badge(kind, delivery.get_status_display(), icon, response_status)


def describe_next_attempt(delivery: Any) -> SafeString | str | None:
    """Return when a pending delivery is sent, or what it waits for."""
    endpoint, now = delivery.endpoint, delivery.read_at  # by the database's clock, of the list or page
    if delivery.next_try_at is None:
        return None
    if delivery.lease_expires_at is not None and delivery.lease_expires_at > now:
        return _now("being sent")
    due = delivery.next_try_at
    if not delivery.probe and endpoint.open_until is not None and endpoint.open_until > max(due, now):
        return format_html("{} {}", format_relative_time(endpoint.open_until), _now("(endpoint suspended)"))
    if due > now:
        return format_relative_time(due)
    if not delivery.probe and is_tripped(endpoint.failures):
        return _now("after the next successful delivery")
    return _now("now")


def resend_selected(rows: Sequence[WebhookDelivery], actor: Actor) -> BulkResult:
    """Resend deliveries; say how many were skipped and why, and how many wait."""
    result = services.resend_many([row.pk for row in rows], actor=actor)
    skipped = (
        (result.disabled, _now("%d skipped: endpoint disabled")),
        (result.in_flight, _now("%d skipped: being sent at this moment")),
        (result.missing, _now("%d skipped: deleted meanwhile")),
    )
    note = ngettext(
        "The endpoint is suspended: %d waits until the first one is delivered.",
        "The endpoint is suspended: %d wait until the first one is delivered.",
        result.waiting,
    )
    refusals = [text % count for count, text in skipped if count]
    return BulkResult(result.resent, refusals, note % result.waiting if result.waiting else "")


class WebhookMessageAdmin(LinkedAdmin):
    list_display = ("id", "event", "tenant", "job_link", "at", "fanned_out_at")
    list_defer = ("body",)
    sortable_by = ("id",)
    id_field = "group_id"
    qualifiers = {"group": "group_id"}
    payload = ("shown_body",)
    fieldsets = ((None, {"fields": ("id", "event", "tenant", "job_link", "group_link", "at", "fanned_out_at")}),)

    shown_body = column(_("body"), "body", lambda body: None if body is None else json_bytes_block(body))


class WebhookAttemptAdmin(ReadOnlyAdmin):
    list_display = ("id", "delivery_link", "at", "response_status", "took_ms", "first_error")
    list_defer = ("response_head", "response_body")
    sortable_by = ("id",)
    id_field = "delivery_id"
    payload = ("shown_head", "shown_body")
    fieldsets = ((None, {"fields": ("id", "delivery_link", "at", "took_ms", "response_status", "shown_error")}),)

    delivery_link = link_column(_("delivery"), WebhookDelivery, "delivery_id")
    shown_error = column(_("error"), "error", text_block)
    shown_head = column(_("response head"), "response_head", text_block)
    shown_body = column(_("response body"), "response_body", text_block)
    first_error = column(_("error"), "error", lambda error: first_line(error) or None)


class WebhookSubscriptionAdmin(LinkedAdmin):
    list_display = ("id", "event", "tenant", "endpoint_link", "since", "until")
    list_select_related = ("endpoint",)
    list_defer = ("endpoint__secret", "endpoint__old_secret")
    sortable_by = ("id",)
    id_field = "endpoint_id"
    qualifiers = {"endpoint": "endpoint", "event": "event"}
    fieldsets = ((None, {"fields": ("id", "event", "tenant", "endpoint_link", "since", "until")}),)


def deliveries_of_job(admin: Any, request: HttpRequest, job: Job) -> SafeString | None:
    """Return a job's deliveries for its page; None without any, and without the permission to view them."""
    if not request.user.has_perm(VIEW_PERMISSION):
        return None
    rows = WebhookDelivery.objects.filter(job_id=job.pk).select_related("endpoint").order_by("-pk")
    deliveries = list(rows.defer("endpoint__secret", "endpoint__old_secret")[:ROWS_SHOWN])
    waiting = services.count_before_fan_out([job.pk]).get(job.pk, 0)
    if not deliveries and not waiting:
        return None
    site = admin.admin_site
    all_url = f"{list_url(site, WebhookDelivery)}?q=job:{job.pk}" if site.is_registered(WebhookDelivery) else ""
    table_rows = [
        (row, link(site, WebhookDelivery, row.pk, row.endpoint.origin), _status_badge(row)) for row in deliveries
    ]
    context = {
        "deliveries": table_rows,
        "waiting": waiting,
        "all_url": all_url if len(deliveries) == ROWS_SHOWN else "",
    }
    return render_to_string("webhooks/deliveries_of_job.html", context, request)


def find_disabled() -> QuerySet[WebhookEndpoint]:
    """Return the endpoints that were disabled after failures."""
    return WebhookEndpoint.objects.filter(enabled=False).exclude(disabled_reason="")


def alert_disabled(site: AdminSite, request: HttpRequest) -> Iterator[Alert]:
    """Yield an alert if endpoints were disabled after failures."""
    if not request.user.has_perm("jobscheduler_webhooks.view_webhookendpoint"):
        return
    if disabled := list(find_disabled().only("url", "disabled_reason")[:MAX_COUNT]):
        count = len(disabled)
        message = ngettext(
            "%d webhook endpoint was disabled after failures.",
            "%d webhook endpoints were disabled after failures.",
            count,
        )
        names = [
            format_html("<bdi>{}</bdi> “<bdi>{}</bdi>”", endpoint.origin, first_line(endpoint.disabled_reason, 100))
            for endpoint in disabled[:SHOWN_IN_ALERT]
        ]
        url = f"{list_url(site, WebhookEndpoint)}?enabled=failed" if site.is_registered(WebhookEndpoint) else ""
        link_text = ngettext("Show endpoint", "Show endpoints", count)
        detail = join_names(names, count - len(names))
        yield Alert(message % count, url, link_text, is_bad=False, badge=_now("Webhook"), detail=detail)
