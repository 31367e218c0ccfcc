"""Endpoints and what they subscribe to, the outbox, deliveries and their attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.ids import uuid7
from jobs.models import JobEvent
from jobs.models.routing import RoutedManager


class WebhookEndpoint(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    tenant = models.CharField(_("tenant"), max_length=64, default="default")
    url = models.CharField(_("URL"), max_length=2000)
    events = models.JSONField(_("events"), default=list)
    enabled = models.BooleanField(_("enabled"), default=True)
    disabled_reason = models.TextField(_("disabled because"), default="", blank=True)
    secret = models.BinaryField(_("secret, encrypted"), editable=False)
    old_secret = models.BinaryField(_("previous secret, encrypted"), null=True, editable=False)
    old_secret_until = models.DateTimeField(_("previous secret valid until"), null=True, blank=True)
    failures = models.IntegerField(_("consecutive failures"), default=0)
    open_until = models.DateTimeField(_("suspended until"), null=True, blank=True)
    failing_since = models.DateTimeField(_("failing since"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"), db_default=Now())

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_webhookendpoint"
        verbose_name = _("webhook endpoint")
        verbose_name_plural = _("webhook endpoints")
        ordering = ("-id",)
        permissions = [
            ("test_webhookendpoint", _("Can send test deliveries")),
            ("rotate_webhookendpoint", _("Can rotate secrets")),
        ]
        indexes = [models.Index(fields=("tenant",), condition=Q(enabled=True), name="endpoint_listening")]

    def __str__(self) -> str:
        return f"{self.origin} (…{str(self.pk)[-12:]})"

    @property
    def origin(self) -> str:
        """Scheme and host of the URL. The path may be a secret: it takes the permission to view payloads."""
        try:
            parts = urlsplit(self.url)
        except ValueError:  # only raw SQL can have written it
            return ""
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class WebhookSubscription(models.Model):
    """One event of one tenant that an endpoint subscribes to, patterns expanded.

    Only `webhooks.subscriptions` writes it; the triggers that fill the outbox read it. A row exists as long as the
    endpoint lists the event; `until` is set while the endpoint is disabled.
    """

    endpoint = models.ForeignKey(
        WebhookEndpoint,
        models.CASCADE,  # a trigger does the same for raw SQL
        db_index=False,
        related_name="subscriptions",
        verbose_name=_("endpoint"),
    )
    tenant = models.CharField(_("tenant"), max_length=64)
    event = models.CharField(_("event"), max_length=32)
    since = models.DateTimeField(_("since"), db_default=Now())
    until = models.DateTimeField(_("until"), null=True, blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_webhooksubscription"
        verbose_name = _("webhook subscription")
        verbose_name_plural = _("webhook subscriptions")
        ordering = ("-id",)
        indexes = [models.Index(fields=("event", "tenant"), name="subscription_of_event")]
        constraints = [models.UniqueConstraint(fields=("endpoint", "event"), name="subscription_once")]

    def __str__(self) -> str:
        return f"{self.event} {self.endpoint_id}"


class MessageManager(RoutedManager):
    def of_jobs(self, job_ids: Sequence[UUID]) -> Any:
        return self.filter(event_id__in=JobEvent.objects.filter(job_id__in=job_ids).order_by().values("pk"))


class WebhookMessage(models.Model):
    """The outbox: one row for each event with a subscription, written by a trigger (see `webhooks.outbox`).

    Fan-out builds the body, once, and inserts a delivery for each subscribed endpoint.
    """

    id = models.BigAutoField(primary_key=True)
    event_id = models.BigIntegerField(_("job event"), null=True, blank=True, unique=True)
    tenant = models.CharField(_("tenant"), max_length=64)
    event = models.CharField(_("event"), max_length=32)
    job_id = models.UUIDField(_("job"), null=True, blank=True)
    group_id = models.UUIDField(_("group"), null=True, blank=True)
    group_status = models.CharField(_("group status"), max_length=9, null=True, blank=True)
    group_round = models.IntegerField(_("round of the group"), null=True, blank=True)
    at = models.DateTimeField(_("at"), db_default=Now())
    body = models.BinaryField(_("body"), null=True, editable=False)
    fanned_out_at = models.DateTimeField(_("fanned out"), null=True, blank=True)

    objects = MessageManager()

    class Meta:
        db_table = "jobscheduler_webhookmessage"
        verbose_name = _("webhook message")
        verbose_name_plural = _("webhook messages")
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("id",), condition=Q(fanned_out_at__isnull=True), name="message_not_fanned_out"),
            models.Index(fields=("group_id",), condition=Q(group_id__isnull=False), name="message_of_group"),
        ]  # a job's messages are found by its events: an index would be written with every event
        constraints = [
            models.CheckConstraint(
                name="message_fanned_out_with_body",
                condition=Q(fanned_out_at__isnull=True) | Q(body__isnull=False),
            )
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.id}"


class DeliveryStatus(models.TextChoices):
    PENDING = "PENDING", pgettext_lazy("delivery status", "Pending")
    DELIVERED = "DELIVERED", pgettext_lazy("delivery status", "Delivered")
    FAILED = "FAILED", pgettext_lazy("delivery status", "Failed")


class WebhookDelivery(models.Model):
    """One message to one endpoint. Its id is the `webhook-id` of every attempt."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    endpoint = models.ForeignKey(
        WebhookEndpoint, models.CASCADE, db_index=False, related_name="deliveries", verbose_name=_("endpoint")
    )
    message = models.ForeignKey(WebhookMessage, models.CASCADE, related_name="deliveries", verbose_name=_("message"))
    event = models.CharField(_("event"), max_length=32)
    job_id = models.UUIDField(_("job"), null=True, blank=True)
    group_id = models.UUIDField(_("group"), null=True, blank=True)
    status = models.CharField(_("status"), max_length=9, choices=DeliveryStatus.choices, default=DeliveryStatus.PENDING)
    attempts = models.IntegerField(_("attempts"), default=0)
    attempts_before = models.IntegerField(_("attempts before it was resent"), default=0)
    next_try_at = models.DateTimeField(_("next attempt"), null=True, blank=True, db_default=Now())
    probe = models.BooleanField(_("sent although the endpoint is suspended"), default=False, editable=False)
    lease_token = models.UUIDField(null=True, blank=True, editable=False)
    lease_expires_at = models.DateTimeField(null=True, blank=True, editable=False)
    response_status = models.IntegerField(_("response status"), null=True, blank=True)
    error = models.TextField(_("error"), default="", blank=True)
    created_at = models.DateTimeField(_("created"), db_default=Now())
    delivered_at = models.DateTimeField(_("delivered"), null=True, blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_webhookdelivery"
        verbose_name = _("webhook delivery")
        verbose_name_plural = _("webhook deliveries")
        ordering = ("-id",)
        permissions = [("resend_delivery", _("Can resend deliveries"))]
        indexes = [
            models.Index(fields=("endpoint", "next_try_at"), condition=Q(status="PENDING"), name="delivery_due"),
            models.Index(fields=("endpoint",), condition=Q(probe=True), name="delivery_probe"),
            models.Index(fields=("endpoint",), condition=Q(lease_token__isnull=False), name="delivery_leased"),
            models.Index(fields=("endpoint", "id"), condition=Q(status="FAILED"), name="delivery_failed"),
            models.Index(fields=("endpoint", "-id"), name="delivery_of_endpoint"),
            models.Index(fields=("job_id",), condition=Q(job_id__isnull=False), name="delivery_of_job"),
        ]
        constraints = [
            models.CheckConstraint(name="delivery_status_known", condition=Q(status__in=DeliveryStatus.values)),
            models.CheckConstraint(
                name="delivery_due_iff_pending",
                condition=Q(status="PENDING", next_try_at__isnull=False)
                | (~Q(status="PENDING") & Q(next_try_at__isnull=True, lease_token__isnull=True)),
            ),
            models.CheckConstraint(
                name="delivery_lease_whole",
                condition=Q(lease_token__isnull=True, lease_expires_at__isnull=True)
                | Q(lease_token__isnull=False, lease_expires_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.id}"


class WebhookAttempt(models.Model):
    """One attempt of a delivery, and the response."""

    delivery = models.ForeignKey(WebhookDelivery, models.CASCADE, related_name="tries", verbose_name=_("delivery"))
    at = models.DateTimeField(_("at"), db_default=Now())
    took_ms = models.IntegerField(_("took (ms)"))
    response_status = models.IntegerField(_("response status"), null=True, blank=True)
    response_head = models.TextField(_("response head"), default="", blank=True)
    response_body = models.TextField(_("response body"), default="", blank=True)
    error = models.TextField(_("error"), default="", blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_webhookattempt"
        verbose_name = _("webhook attempt")
        verbose_name_plural = _("webhook attempts")
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.delivery_id} {self.response_status or '-'}"
