"""Counts and durations per minute, written when a job finishes and summed on read."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.models.job import STATUS_CHOICES
from jobs.models.routing import RoutedManager

MINUTE_RETENTION = timedelta(hours=26)  # the last day has exact minutes
HOUR_RETENTION = timedelta(days=35)  # a chart of a month has its hours, however short RETENTION_DAYS is
HOUR_WRITER, DAY_WRITER = "@hour", "@day"  # the writers of compacted rows; no worker can have these names
MAX_NAMES, OTHER_NAMES = 1000, "other"  # names of a tenant that a compacted hour or day keeps, and that of the rest
BUCKETS_SEC = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200)  # upper bounds; one more bucket is open-ended


class JobMinute(models.Model):
    """A rollup row of one minute and one writer, so that two writers never update the same row.

    The key also has the buckets of waiting and running time, from which percentiles are read.
    """

    minute = models.DateTimeField(_("minute"))
    worker = models.CharField(_("written by"), max_length=300)
    tenant = models.CharField(_("tenant"), max_length=64, db_default="")
    resource = models.CharField(_("resource"), max_length=200, db_default="")
    job_type = models.CharField(_("job type"), max_length=200)
    outcome = models.CharField(_("outcome"), max_length=11, choices=STATUS_CHOICES)
    wait_bucket = models.SmallIntegerField(_("wait bucket"), help_text=_("-1: it never started."))
    run_bucket = models.SmallIntegerField(_("run bucket"), help_text=_("-1: it never started."))
    jobs = models.BigIntegerField(_("jobs"), default=0)
    wait_sec = models.FloatField(_("waited (s)"), default=0)
    run_sec = models.FloatField(_("ran (s)"), default=0)
    retried = models.BigIntegerField(_("retried"), db_default=0, help_text=_("Followed by an automatic retry."))
    recovered = models.BigIntegerField(_("recovered"), db_default=0, help_text=_("Their worker was lost."))

    objects = RoutedManager()

    class Meta:
        db_table = "jobscheduler_jobminute"
        verbose_name = _("minute of jobs")
        verbose_name_plural = _("minutes of jobs")
        ordering = ("-minute",)
        constraints = [
            models.UniqueConstraint(
                fields=("minute", "worker", "tenant", "resource", "job_type", "outcome", "wait_bucket", "run_bucket"),
                name="jobminute_key",
            )
        ]

    def __str__(self) -> str:
        return f"{self.minute} {self.job_type} {self.outcome}"
