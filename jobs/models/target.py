"""Targets, which are serial queues, and the marks of targets that the promoter must check again."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobs.models.routing import RoutedManager


class Target(models.Model):
    """A serial queue within a tenant. Its id is derived from (tenant, key), see `jobs.ids.derive_lane_id`."""

    id = models.UUIDField(primary_key=True, editable=False)
    tenant = models.CharField(_("tenant"), max_length=64, default="default")
    key = models.CharField(_("key"), max_length=200)
    paused = models.BooleanField(_("paused"), default=False)
    paused_by = models.CharField(_("paused by"), max_length=300, default="", blank=True)
    paused_at = models.DateTimeField(_("paused since"), null=True, blank=True)
    reason = models.TextField(_("reason"), default="", blank=True)
    created_at = models.DateTimeField(_("created"), db_default=Now())

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_target"
        verbose_name = _("target")
        verbose_name_plural = _("targets")
        ordering = ("tenant", "key")
        permissions = [("pause_target", _("Can pause and unpause targets"))]
        constraints = [models.UniqueConstraint(fields=("tenant", "key"), name="target_key")]

    def __str__(self) -> str:
        return self.key


class LaneMark(models.Model):
    """The mark of a dirty target: inserted with every change of its jobs, deleted by the promoter."""

    lane_id = models.UUIDField()

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_lanemark"
        verbose_name = _("lane mark")
        verbose_name_plural = _("lane marks")

    def __str__(self) -> str:
        return str(self.lane_id)
