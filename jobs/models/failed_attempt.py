"""Counts of failed log-ins and of requests with unknown tokens, by their source."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from jobs.models.routing import RoutedManager


class FailedAttempt(models.Model):
    """The failures of one source since `window_at`. `key` is a digest: neither names nor addresses are stored."""

    key = models.CharField(max_length=64, primary_key=True)
    window_at = models.DateTimeField(db_default=Now())
    count = models.IntegerField()

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_failedattempt"
        default_permissions = ()  # no page shows it
        indexes = [models.Index(fields=["window_at"], name="failedattempt_window")]

    def __str__(self) -> str:
        return self.key
