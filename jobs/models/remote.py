"""Who asks for remote jobs, and how lately: offers are made only to those who are there to start them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.models.routing import RoutedManager


class Poller(models.Model):
    """An addon that asked what it may start. The tenant is empty for a caller of all tenants."""

    tenant = models.CharField(_("tenant"), max_length=64, default="", blank=True)
    addon_id = models.CharField(_("addon"), max_length=200, default="", blank=True)
    most = models.IntegerField(_("asked for at most"), default=1)
    polled_at = models.DateTimeField(_("last asked"))

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_poller"
        verbose_name = _("remote poller")
        verbose_name_plural = _("remote pollers")
        constraints = [models.UniqueConstraint(fields=("tenant", "addon_id"), name="poller_of_addon")]

    def __str__(self) -> str:
        return self.addon_id
