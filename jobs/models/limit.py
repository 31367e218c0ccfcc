"""Concurrency limits that an operator can edit, and slot leases without a job."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.conf import LimitValues
from jobs.ids import uuid7
from jobs.models.routing import RoutedManager


class LimitScope(models.TextChoices):
    GLOBAL = "global", pgettext_lazy("limit scope", "Global")
    JOB_TYPE = "job_type", pgettext_lazy("limit scope", "Job type")
    RESOURCE = "resource", pgettext_lazy("limit scope", "Resource")
    TENANT = "tenant", pgettext_lazy("limit scope", "Tenant")
    ADDON = "addon", pgettext_lazy("limit scope", "Addon")


class LimitQuerySet(models.QuerySet["ConcurrencyLimit"]):
    def in_force(self) -> LimitQuerySet:
        """Return the limits that may prevent a start: with a maximum, paused, or with a rate."""
        return self.filter(Q(max__isnull=False) | Q(paused=True) | ~Q(rate="") | ~Q(token_rate=""))


class ConcurrencyLimit(models.Model):
    """A limit, locked by a claim before it counts. Without an override its values come from the settings."""

    scope = models.CharField(_("scope"), max_length=8, choices=LimitScope.choices)
    key = models.CharField(_("key"), max_length=200, default="", blank=True)
    overridden = models.BooleanField(_("overrides the settings"), default=True)
    max = models.IntegerField(_("maximum"), null=True, blank=True, help_text=_("Default: unlimited"))
    paused = models.BooleanField(_("paused"), default=False)
    paused_by = models.CharField(_("paused by"), max_length=300, default="", blank=True)
    paused_at = models.DateTimeField(_("paused since"), null=True, blank=True)
    reason = models.TextField(_("reason"), default="", blank=True)
    rate = models.CharField(_("rate"), max_length=20, default="", blank=True)
    token_rate = models.CharField(_("token rate"), max_length=20, default="", blank=True)
    burst = models.IntegerField(_("burst"), null=True, blank=True)
    # the buckets of the rates, as of `bucket_at`; None: full. Written by claims, see `jobs.rates`
    rate_level = models.FloatField(null=True, blank=True, editable=False)
    token_level = models.FloatField(null=True, blank=True, editable=False)
    bucket_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = RoutedManager.from_queryset(LimitQuerySet)()

    class Meta:
        db_table = "jobscheduler_concurrencylimit"
        verbose_name = _("concurrency limit")
        verbose_name_plural = _("concurrency limits")
        ordering = ("scope", "key")
        permissions = [
            ("change_limits", _("Can set and pause limits")),
            ("pause_resource", _("Can pause and resume resources")),
        ]
        constraints = [
            models.UniqueConstraint(fields=("scope", "key"), name="limit_scope_key"),
            models.CheckConstraint(name="limit_scope_known", condition=Q(scope__in=LimitScope.values)),
            models.CheckConstraint(
                name="limit_key_unless_global",
                condition=Q(scope=LimitScope.GLOBAL, key="") | (~Q(scope=LimitScope.GLOBAL) & ~Q(key="")),
            ),
            models.CheckConstraint(name="limit_at_least_one", condition=Q(max__isnull=True) | Q(max__gte=1)),
            models.CheckConstraint(name="limit_burst_range", condition=Q(burst__isnull=True) | Q(burst__gte=1)),
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.key}".strip()

    @property
    def values(self) -> LimitValues:
        """The values that settings and operators set."""
        return LimitValues(self.max, self.rate, self.token_rate, self.burst)


class TokenSpend(models.Model):
    """The tokens that a job or a direct call has taken from the buckets of its limits; deleted once it has ended.

    Written by claims, under the locks of the limits. `id` is that of the job or the lease.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.CharField(max_length=64)
    job_type = models.CharField(max_length=200)
    resource = models.CharField(max_length=200)
    addon_id = models.CharField(max_length=200, default="", blank=True)
    reserved = models.BigIntegerField()  # what it may use, if that is limited; else 0
    taken = models.BigIntegerField()  # from the buckets, so far
    used_before = models.BigIntegerField(default=0)  # by the job, before this start

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_tokenspend"

    def __str__(self) -> str:
        return f"{self.job_type} {self.id}: {self.taken}"


class LeaseKind(models.TextChoices):
    ADMISSION = "ADMISSION", pgettext_lazy("lease kind", "Admission only")
    DIRECT = "DIRECT", pgettext_lazy("lease kind", "Direct execution")


class Lease(models.Model):
    """A slot lease without a job: granted once, kept by heartbeats, ended or expired.

    DIRECT: the slot of a direct call. Until it is granted it is a reservation, and takes the next free slot before
    the queue does. ADMISSION: a part of the machine's capacity. One that was not granted is a denial, kept until
    `expires_at`.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    kind = models.CharField(_("kind"), max_length=9, choices=LeaseKind.choices)
    tenant = models.CharField(_("tenant"), max_length=64, default="default")
    job_type = models.CharField(_("job type"), max_length=200)
    resource = models.CharField(_("resource"), max_length=200, default="default")
    addon_id = models.CharField(_("addon"), max_length=200, default="", blank=True)
    flow_id = models.BigIntegerField(editable=False)
    cost_units = models.SmallIntegerField(_("cost units"), default=1)
    priority = models.SmallIntegerField(_("priority"), default=50)
    constraints = models.JSONField(_("constraints"), default=dict, blank=True)
    expected_duration_sec = models.FloatField(_("expected duration (s)"), null=True, blank=True)
    token_limit = models.BigIntegerField(null=True, blank=True, editable=False)  # of a direct call's handler
    tokens_used = models.BigIntegerField(default=0, editable=False)  # by a direct call, written at its end
    owner = models.CharField(_("owner"), max_length=300)
    # of a direct call through the API, for DIRECT_PER_TOKEN; None for a session of the console and for Python code
    api_token = models.UUIDField(null=True, blank=True, editable=False)
    # the process that waits or runs: once it has ended, the lease can be released
    process = models.CharField(max_length=300, default="", blank=True, editable=False)
    requested_at = models.DateTimeField(_("requested"), db_default=Now())
    granted_at = models.DateTimeField(_("granted"), null=True, blank=True)
    expires_at = models.DateTimeField(_("expires"))
    heartbeat_at = models.DateTimeField(_("last heartbeat"), null=True, blank=True)
    beat_clock = models.CharField(max_length=100, null=True, blank=True, editable=False)  # see `Job.beat_clock`
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    outcome = models.TextField(_("outcome"), default="", blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_lease"
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        ordering = ("-id",)
        permissions = [("end_lease", _("Can end direct calls"))]
        indexes = [models.Index(fields=("flow_id", "id"), condition=Q(ended_at__isnull=True), name="lease_live")]
        constraints = [
            models.CheckConstraint(name="lease_kind_known", condition=Q(kind__in=LeaseKind.values)),
            models.CheckConstraint(name="lease_cost_range", condition=Q(cost_units__range=(0, 100))),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.job_type} {self.id}"
