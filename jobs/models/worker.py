"""Worker processes, as the console shows them, and addons that poll for remote jobs.

Recovery does not read these tables: it reads leases. The unique index of names lets one live worker have a name.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.conf import conf
from jobs.ids import uuid7
from jobs.models.routing import RoutedManager
from jobs.process_identity import ProcessIdentity

IDLE_BEAT_SEC = 5.0  # how often an idle worker writes its row


def heartbeat_timeout() -> timedelta:
    """Return how old the last heartbeat of a live worker can be."""
    return timedelta(seconds=max(conf.LEASE_SEC, 3 * IDLE_BEAT_SEC))


class WorkerState(models.TextChoices):
    RUNNING = "RUNNING", pgettext_lazy("worker state", "Online")
    QUIET = "QUIET", pgettext_lazy("worker state", "Draining")
    STOPPING = "STOPPING", pgettext_lazy("worker state", "Stopping")
    STOPPED = "STOPPED", pgettext_lazy("worker state", "Stopped")


class Worker(models.Model):
    """One worker process; a restart under the same name is a new row."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    name = models.CharField(_("name"), max_length=200)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process id"))
    boot_id = models.CharField(max_length=64, default="", blank=True)
    pid_namespace = models.CharField(max_length=64, default="", blank=True)
    pid_started = models.CharField(max_length=32, default="", blank=True)
    version = models.CharField(_("version"), max_length=50, default="", blank=True)
    state = models.CharField(_("state"), max_length=8, choices=WorkerState.choices, default=WorkerState.RUNNING)
    slots = models.IntegerField(_("slots"), default=1)
    busy = models.IntegerField(_("busy"), default=0)
    stuck = models.IntegerField(_("stuck slots"), default=0)
    rss_bytes = models.BigIntegerField(_("memory"), null=True, blank=True)
    cpu_percent = models.FloatField(_("processor, of one core"), null=True, blank=True)
    serves = models.JSONField(_("serves"), default=dict, blank=True)
    request = models.CharField(_("requested state"), max_length=8, choices=WorkerState.choices, default="", blank=True)
    requested_at = models.DateTimeField(_("requested at"), null=True, blank=True)
    started_at = models.DateTimeField(_("started"), db_default=Now())
    heartbeat_at = models.DateTimeField(_("last heartbeat"), db_default=Now())
    stopped_at = models.DateTimeField(_("stopped"), null=True, blank=True)

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_worker"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        ordering = ("-id",)
        permissions = [("stop_worker", _("Can drain and stop workers"))]
        indexes = [models.Index(fields=("name", "-id"), name="worker_lives")]
        constraints = [
            models.UniqueConstraint(fields=("name",), condition=Q(stopped_at__isnull=True), name="worker_name_in_use")
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_claiming(self) -> bool:
        """Whether it runs and was not requested to drain or stop."""
        return self.state == WorkerState.RUNNING and not self.request

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.name, self.host, self.boot_id, self.pid_namespace, self.pid, self.pid_started)


class Poller(models.Model):
    """An addon's last poll. Offers are made only to addons that poll.

    The tenant is empty for a token of all tenants, the addon for a poll for all addons.
    """

    tenant = models.CharField(_("tenant"), max_length=64, default="", blank=True)
    addon_id = models.CharField(_("addon"), max_length=200, default="", blank=True)
    most = models.IntegerField(_("maximum per poll"), default=1)
    polled_at = models.DateTimeField(_("last poll"))

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_poller"
        verbose_name = _("remote poller")
        verbose_name_plural = _("remote pollers")
        constraints = [models.UniqueConstraint(fields=("tenant", "addon_id"), name="poller_of_addon")]

    def __str__(self) -> str:
        return self.addon_id
